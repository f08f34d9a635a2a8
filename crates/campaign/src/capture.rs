//! What was on the wire: a capture file in the classic pcap format, of raw IPv4 packets, that Wireshark opens too.

use crate::Error;
use crate::relay::impair::Datagram;
use crate::world::{Direction, Side, rail_address};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::Ipv4Addr;
use std::path::Path;

/// Nanosecond timestamps, native order.
const PCAP_MAGIC_NS: u32 = 0xa1b2_3c4d;
/// `LINKTYPE_RAW`: packets begin with the IP header.
const LINKTYPE_RAW: u32 = 101;
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
const IPV4_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const SNAP_LENGTH: u32 = 1 << 17;

/// A capture stops growing here: a test that runs long must not fill the disk.
const CAPTURE_MAX: u64 = 1 << 30;

/// A datagram as a machine sent it, before anything was done to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Nanoseconds since the relay's start.
    pub at_ns: u64,
    /// On which rail.
    pub rail: u8,
    /// Which way.
    pub direction: Direction,
    /// Ports and payload.
    pub datagram: Datagram,
}

/// Writes a capture.
pub struct CaptureWriter {
    file: BufWriter<File>,
    written: u64,
    failure: Option<std::io::Error>,
}

impl CaptureWriter {
    /// Begins a file; one that exists is replaced.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let what = format!("cannot create the capture {}", path.display());
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path).map_err(Error::io(what))?);
        let mut header = Vec::with_capacity(FILE_HEADER);
        header.extend_from_slice(&PCAP_MAGIC_NS.to_ne_bytes());
        header.extend_from_slice(&2u16.to_ne_bytes());
        header.extend_from_slice(&4u16.to_ne_bytes());
        header.extend_from_slice(&[0; 8]);
        header.extend_from_slice(&SNAP_LENGTH.to_ne_bytes());
        header.extend_from_slice(&LINKTYPE_RAW.to_ne_bytes());
        file.write_all(&header).map_err(Error::io("cannot write the capture"))?;
        Ok(Self { file, written: FILE_HEADER as u64, failure: None })
    }

    /// Adds a datagram. A failure is told by the next [`CaptureWriter::flush`].
    pub fn record(&mut self, at_ns: u64, rail: u8, direction: Direction, datagram: &Datagram) {
        if self.written >= CAPTURE_MAX || self.failure.is_some() {
            return;
        }
        let record = encode(at_ns, rail, direction, datagram);
        self.written += record.len() as u64;
        self.failure = self.file.write_all(&record).err();
    }

    /// Everything recorded so far is in the file.
    pub fn flush(&mut self) -> Result<(), Error> {
        let failed = self.failure.take().map_or(Ok(()), Err);
        failed.and_then(|()| self.file.flush()).map_err(Error::io("cannot write the capture"))
    }
}

/// Reads a whole capture.
pub fn read(path: &Path) -> Result<Vec<Captured>, Error> {
    let bytes = std::fs::read(path).map_err(Error::io(format!("cannot read {}", path.display())))?;
    decode(&bytes)
        .ok_or_else(|| Error::unexpected(format!("{} is not a capture of the relay", path.display())))
}

/// Whether `needle` occurs in `haystack`: for "nothing of the payload is readable".
pub fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    !needle.is_empty() && haystack.windows(needle.len()).any(|window| window == needle)
}

fn encode(at_ns: u64, rail: u8, direction: Direction, datagram: &Datagram) -> Vec<u8> {
    let udp_length = (UDP_HEADER + datagram.payload.len()) as u16;
    let ip_length = udp_length.saturating_add(IPV4_HEADER as u16);
    let captured = (IPV4_HEADER + UDP_HEADER + datagram.payload.len()) as u32;
    let mut record = Vec::with_capacity(RECORD_HEADER + captured as usize);
    for word in [(at_ns / 1_000_000_000) as u32, (at_ns % 1_000_000_000) as u32, captured, captured] {
        record.extend_from_slice(&word.to_ne_bytes());
    }
    record.extend_from_slice(&[0x45, 0]);
    record.extend_from_slice(&ip_length.to_be_bytes());
    // No fragments, 64 hops, UDP, checksum left to the reader's leniency.
    record.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0]);
    record.extend_from_slice(&rail_address(rail, direction.source()).octets());
    record.extend_from_slice(&rail_address(rail, direction.target()).octets());
    for field in [datagram.source_port, datagram.target_port, udp_length, 0] {
        record.extend_from_slice(&field.to_be_bytes());
    }
    record.extend_from_slice(&datagram.payload);
    record
}

fn decode(bytes: &[u8]) -> Option<Vec<Captured>> {
    let (header, mut rest) = bytes.split_at_checked(FILE_HEADER)?;
    if header[..4] != PCAP_MAGIC_NS.to_ne_bytes() {
        return None;
    }
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (record, after) = rest.split_at_checked(RECORD_HEADER)?;
        let word = |at: usize| record[at..].first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        let (packet, after) = after.split_at_checked(word(8)? as usize)?;
        let at_ns = u64::from(word(0)?) * 1_000_000_000 + u64::from(word(4)?);
        all.push(decode_packet(at_ns, packet)?);
        rest = after;
    }
    Some(all)
}

fn decode_packet(at_ns: u64, packet: &[u8]) -> Option<Captured> {
    let (headers, payload) = packet.split_at_checked(IPV4_HEADER + UDP_HEADER)?;
    let source = Ipv4Addr::from(*headers[12..].first_chunk::<4>()?);
    let rail = source.octets()[2];
    let side = [Side::Left, Side::Right].into_iter().find(|&side| rail_address(rail, side) == source)?;
    let port = |at: usize| headers[at..].first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    let datagram = Datagram { source_port: port(20)?, target_port: port(22)?, payload: payload.to_vec() };
    Some(Captured { at_ns, rail, direction: Direction::from_side(side), datagram })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let datagram = Datagram { source_port: 40_000, target_port: 7411, payload: vec![1, 2, 3] };
        let record = encode(5_000_000_007, 1, Direction::RightToLeft, &datagram);
        let packet = decode_packet(5_000_000_007, &record[RECORD_HEADER..]).unwrap();
        let expected =
            Captured { at_ns: 5_000_000_007, rail: 1, direction: Direction::RightToLeft, datagram };
        assert_eq!(packet, expected);
        assert!(decode(&record).is_none(), "a record without the file's header is no capture");
    }

    #[test]
    fn needles_are_found() {
        assert!(contains(b"haystack", b"sta"));
        assert!(!contains(b"haystack", b"stan"));
        assert!(!contains(b"hay", b"haystack"));
    }
}
