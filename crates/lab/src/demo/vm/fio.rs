//! fio in the guest: what it is told, and what it reports.

use serde::Deserialize;

/// Requests outstanding, of each.
pub(super) const DEPTH: u64 = 8;
/// How often a pass writes its area and reads it back: starting fio takes a translated processor half a second.
const REPEATS: u32 = 2;
/// Where reports are in the guest. Its disk is memory.
const FOLDER: &str = "/run/load";
/// Before each report, with its name.
const HEADING: &str = "== ";
/// fio's word for data that are not what was written: `EILSEQ` of Linux.
const EILSEQ: i64 = 84;
/// Milliseconds that fio's log has a line for.
const LOG_MS: u32 = 10;

/// A part of the drive, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

/// What one fio did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pass {
    /// Requests that completed.
    pub completions: u64,
    /// Bytes that were read back and right.
    pub bytes_verified: u64,
    /// Bytes of blocks that were wrong.
    pub corrupted_bytes: u64,
    /// 1 if a request failed: fio ends then.
    pub io_errors: u64,
    /// What it complained of, for a person.
    pub complaint: Option<String>,
    /// How long its requests waited.
    pub waits: Vec<GuestWait>,
}

/// The longest wait among requests that ended at about the same time, in the guest's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GuestWait {
    /// When, in milliseconds since 1970.
    pub end_ms: u64,
    /// How long, in nanoseconds.
    pub length_ns: u64,
}

/// Before a phase: no old reports.
pub(super) fn prepare() -> String {
    format!("rm -rf {FOLDER} && mkdir {FOLDER}")
}

/// Pass after pass until told to stop, or until one fails.
///
/// Seeds go on within a pass (`randrepeat=0`) and differ between passes, so that what an earlier one left is told from
/// what was written last. After a wrong block or an error there is no going on.
pub(super) fn work(drive: &str, index: usize, area: Area, seed: u64) -> String {
    let Area { offset, bytes } = area;
    let report = format!("{FOLDER}/{index}.$n");
    format!(
        "n=0; until [ -e {FOLDER}/stop ]; do n=$((n + 1)); \
         fio --name=load --filename={drive} --direct=1 --ioengine=libaio --thread --iodepth={DEPTH} --rw=randwrite \
         --bsrange=4k-64k --offset={offset} --size={bytes} --loops={REPEATS} --randrepeat=0 --randseed=$(({seed} + n)) \
         --verify=crc32c --verify_fatal=1 --eta=never --output-format=json --output={report}.json \
         --disable_slat=1 --disable_clat=1 --write_lat_log={report} --per_job_logs=0 --log_avg_msec={LOG_MS} \
         --log_max_value=1 --log_unix_epoch=1 2>{report}.complaint || exit 1; done"
    )
}

/// No new passes.
pub(super) fn stop() -> String {
    format!("touch {FOLDER}/stop")
}

/// Prints all reports and removes them.
pub(super) fn collect() -> String {
    format!(
        "cd {FOLDER} && rm -f stop *_slat.log *_clat.log && \
         for report in *; do echo \"{HEADING}$report\"; cat \"$report\"; echo; done; rm -rf {FOLDER}"
    )
}

/// Reads what [`collect`] printed.
pub(super) fn parse(text: &str) -> Vec<Pass> {
    let reports: Vec<(&str, &str)> = text
        .split(&format!("\n{HEADING}"))
        .map(|report| report.strip_prefix(HEADING).unwrap_or(report))
        .filter_map(|report| report.split_once('\n'))
        .collect();
    let find =
        |name: String| reports.iter().find(|(known, _)| *known == name).map_or("", |(_, report)| report);
    let passes = reports.iter().filter_map(|(name, _)| name.strip_suffix(".complaint"));
    passes
        .map(|name| {
            let complaint = find(format!("{name}.complaint")).trim();
            let mut pass = judge(find(format!("{name}.json")), complaint);
            pass.waits = find(format!("{name}_lat.log")).lines().filter_map(parse_wait).collect();
            pass
        })
        .collect()
}

/// fio's report of a pass, as far as it matters here.
#[derive(Deserialize)]
struct Report {
    jobs: Vec<JobReport>,
}

#[derive(Deserialize)]
struct JobReport {
    error: i64,
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    io_bytes: u64,
    total_ios: u64,
}

fn judge(report: &str, complaint: &str) -> Pass {
    // On an error a line of text may come before the document.
    let document = report.find('{').map_or("", |start| &report[start..]);
    let job = serde_json::from_str::<Report>(document).ok().and_then(|report| report.jobs.into_iter().next());
    let Some(job) = job else {
        let complaint = format!("fio in the guest left no report: {complaint} {report}");
        return Pass { io_errors: 1, complaint: Some(complaint.trim().to_owned()), ..Pass::default() };
    };
    let mut pass = Pass {
        completions: job.read.total_ios.saturating_add(job.write.total_ios),
        bytes_verified: job.read.io_bytes,
        ..Pass::default()
    };
    match job.error {
        0 => return pass,
        EILSEQ => {
            pass.corrupted_bytes = wrong_bytes(complaint).max(1);
            pass.bytes_verified = pass.bytes_verified.saturating_sub(pass.corrupted_bytes);
        }
        _ => pass.io_errors = 1,
    }
    pass.complaint = Some(format!("fio in the guest ended with error {}: {complaint}", job.error));
    pass
}

/// Sums the lengths of blocks that fio complains of: `verify: ... at file F offset N, length N (...)`.
fn wrong_bytes(complaint: &str) -> u64 {
    let lines = complaint.lines().filter(|line| line.contains("verify"));
    let length = |line: &str| {
        let rest = line.split_once("length ")?.1;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    lines.filter_map(length).fold(0, u64::saturating_add)
}

/// A line of fio's log: the time, the latency, and what does not matter here.
fn parse_wait(line: &str) -> Option<GuestWait> {
    let mut fields = line.split(',').map(|field| field.trim().parse::<u64>());
    Some(GuestWait { end_ms: fields.next()?.ok()?, length_ns: fields.next()?.ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{ "jobs" : [ { "error" : 0, "read" : { "io_bytes" : 16777216, "total_ios" : 710 },
        "write" : { "io_bytes" : 16777216, "total_ios" : 711 } } ] }"#;

    #[test]
    fn reports_of_all_passes_are_found() {
        let text = format!(
            "== 0.1.complaint\n\n== 0.1.json\n{GOOD}\n\n== 0.1_lat.log\n1795296832297, 18716809, 1, 0, 0\nx, 1\n\n\
             == 1.1.complaint\n\n== 1.1.json\n{GOOD}\n"
        );
        let passes = parse(&text);
        assert_eq!(passes.len(), 2, "{passes:?}");
        let wait = GuestWait { end_ms: 1_795_296_832_297, length_ns: 18_716_809 };
        let good = Pass { completions: 1421, bytes_verified: 16 << 20, ..Pass::default() };
        assert_eq!(passes[0], Pass { waits: vec![wait], ..good.clone() });
        assert_eq!(passes[1], good);
        assert!(parse("").is_empty());
    }

    #[test]
    fn wrong_blocks_and_failed_requests_are_told_apart() {
        let complaint = "verify: bad magic header 0, wanted acca at file /dev/nvme0n1 offset 67108864, length 8192 \
                         (requested block: offset=67108864, length=8192)\nfio: pid=98, err=84/file:io_u.c:2257";
        let wrong =
            judge(&format!("fio: words\n{}", GOOD.replace("\"error\" : 0", "\"error\" : 84")), complaint);
        assert_eq!((wrong.corrupted_bytes, wrong.io_errors), (8192, 0));
        assert_eq!(wrong.bytes_verified, (16 << 20) - 8192);
        assert!(wrong.complaint.is_some_and(|text| text.contains("bad magic")));
        let failed = judge(&GOOD.replace("\"error\" : 0", "\"error\" : 5"), "");
        assert_eq!((failed.corrupted_bytes, failed.io_errors), (0, 1));
        let none = judge("", "fio: cannot open");
        assert!(none.io_errors == 1 && none.complaint.is_some_and(|text| text.contains("cannot open")));
    }
}
