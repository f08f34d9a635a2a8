//! What QEMU is asked to do with slots: plug them in and out, and stay where it is meanwhile.

mod plug;
mod stay;

use std::io;

use qmp::Error;

pub(crate) use self::plug::Plug;
pub(crate) use self::stay::empty_image;

/// Why QEMU did not do what was asked of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QmpError {
    #[error(transparent)]
    Qmp(#[from] Error),
    #[error(
        "{0} cannot be taken out of QEMU: its guest has not enabled it, and QEMU would end with an assertion; it stays \
         there, dead, until its machine is stopped"
    )]
    NotEnabled(String),
    #[error(
        "the machine waits for its state from elsewhere (-incoming), which a borrowed function does not come with; \
         attach the function when the machine runs"
    )]
    Incoming,
    #[error("cannot make an image in memory: {0}")]
    Image(io::Error),
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use qmp::Qmp;

    use super::*;

    /// A QEMU of this version that has said all this after its greeting already, and says no more.
    pub(super) fn qemu(major: u64, lines: &str) -> (Result<Qmp, Error>, UnixStream) {
        let version = serde_json::json!({ "qemu": { "micro": 3, "minor": 1, "major": major } });
        let greeting = serde_json::json!({ "QMP": { "version": version, "capabilities": [] } });
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        write!(theirs, "{greeting}\n{{\"return\":{{}}}}\n{lines}").unwrap();
        (Qmp::greet(ours, Duration::from_millis(200), None), theirs)
    }

    #[test]
    fn one_that_is_too_old_is_refused_by_name() {
        let (old, _qemu) = qemu(9, "");
        assert_eq!(old.unwrap_err().to_string(), "this is QEMU 9.1.3; vfio-user needs 10.1 or later");
    }
}
