//! Captured frames as pcapng: an interface for each link, whose packets are frames and nothing else (link type USER0).

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::io::capture::{Captured, LINKS, LinkCount};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness, PcapError};

use crate::control::capture::{Head, Link};

/// Times are in nanoseconds (`if_tsresol`).
const NANOSECONDS: u8 = 9;
/// Which way a packet went (`epb_flags`, bits 0 and 1).
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// What became of a capture.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Summary {
    /// Frames in the file.
    pub(super) frames: u64,
    /// That there was no room for.
    pub(super) dropped: u64,
}

/// A file that is being written.
pub(super) struct File<W: Write> {
    writer: PcapNgWriter<W>,
    opened: bool,
    /// Of each link, the number of its interface in the file.
    interfaces: [Option<u32>; LINKS],
    count: u32,
    counts: [LinkCount; LINKS],
    frames: u64,
}

impl<W: Write> File<W> {
    /// Writes what stands before the frames.
    pub(super) fn begin(out: W, head: &Head, opened: bool) -> io::Result<Self> {
        let what = if opened {
            "frames opened with the keys of this node: the data in them are plain, so keep this file as you keep those"
        } else {
            "frames as they are on the wire"
        };
        let section = SectionHeaderBlock {
            // `pcap-file` 2.0.0 writes the time of statistics right in this order only.
            endianness: Endianness::Big,
            options: vec![
                SectionHeaderOption::Comment(format!("node {}: {what}", head.node).into()),
                SectionHeaderOption::UserApplication(concat!("causeway ", env!("CARGO_PKG_VERSION")).into()),
            ],
            ..SectionHeaderBlock::default()
        };
        let writer = PcapNgWriter::with_section_header(out, section).map_err(plain)?;
        let (interfaces, counts) = ([None; LINKS], [LinkCount::default(); LINKS]);
        let mut file = Self { writer, opened, interfaces, count: 0, counts, frames: 0 };
        head.links.iter().try_for_each(|link| file.interface(link).map(drop))?;
        Ok(file)
    }

    /// Appends a frame.
    pub(super) fn frame(&mut self, captured: Captured, bytes: &[u8]) -> io::Result<()> {
        let interface = match self.interfaces.get(captured.link).copied().flatten() {
            Some(interface) => interface,
            None => self.late_interface(captured.link)?,
        };
        let direction = if captured.is_sent { OUTBOUND } else { INBOUND };
        self.frames += 1;
        self.put(EnhancedPacketBlock {
            interface_id: interface,
            timestamp: Duration::from_nanos(captured.at_ns),
            original_len: bytes.len() as u32,
            data: Cow::Borrowed(bytes),
            options: vec![EnhancedPacketOption::Flags(direction)],
        })
    }

    /// What was counted so far.
    pub(super) fn note_counts(&mut self, counts: &[LinkCount]) {
        self.counts.iter_mut().zip(counts).for_each(|(known, count)| *known = *count);
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.writer.get_mut().flush()
    }

    /// Writes the statistics of each interface.
    pub(super) fn finish(mut self) -> io::Result<Summary> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let timestamp = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        for link in 0..LINKS {
            let Some(interface_id) = self.interfaces[link] else { continue };
            let LinkCount { seen, dropped } = self.counts[link];
            self.put(InterfaceStatisticsBlock {
                interface_id,
                timestamp,
                options: vec![
                    InterfaceStatisticsOption::IsbIfRecv(seen),
                    InterfaceStatisticsOption::IsbIfDrop(dropped),
                ],
            })?;
        }
        self.flush()?;
        Ok(Summary { frames: self.frames, dropped: self.counts.iter().map(|count| count.dropped).sum() })
    }

    /// Of a rail that has come since the capture began.
    fn late_interface(&mut self, number: usize) -> io::Result<u32> {
        let name = format!("rail {number}");
        self.interface(&Link { number, name, ..Link::default() })
    }

    fn interface(&mut self, link: &Link) -> io::Result<u32> {
        let Link { number, name, medium, local } = link;
        let place = self.interfaces.get_mut(*number).ok_or(io::ErrorKind::InvalidData)?;
        let interface = *place.insert(self.count);
        self.count += 1;
        let opened = if self.opened { ", frames opened" } else { "" };
        let description = format!("{medium} {local}").trim_end().to_owned() + opened;
        self.put(InterfaceDescriptionBlock {
            linktype: DataLink::USER0,
            // Frames are never cut.
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(name.into()),
                InterfaceDescriptionOption::IfDescription(description.into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        })?;
        Ok(interface)
    }

    fn put<'b>(&mut self, block: impl pcap_file::pcapng::PcapNgBlock<'b>) -> io::Result<()> {
        self.writer.write_pcapng_block(block).map(drop).map_err(plain)
    }
}

fn plain(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    fn captured(link: usize, is_sent: bool) -> Captured {
        Captured { at_ns: 1_700_000_000_123_456_789, link, is_sent, is_opened: false }
    }

    #[test]
    fn a_file_has_links_frames_and_statistics() {
        let link = |number, name: &str| Link { number, name: name.to_owned(), ..Link::default() };
        let head = Head { node: "n".to_owned(), links: vec![link(1, "left"), link(4, "memory")] };
        let mut out = Vec::new();
        let mut file = File::begin(&mut out, &head, true).unwrap();
        file.frame(captured(4, true), b"one").unwrap();
        // A rail that came later.
        file.frame(captured(2, false), b"two").unwrap();
        let mut counts = [LinkCount::default(); 5];
        counts[4] = LinkCount { seen: 8, dropped: 7 };
        file.note_counts(&counts);
        assert_eq!(file.finish().unwrap(), Summary { frames: 2, dropped: 7 });

        let mut reader = PcapNgReader::new(&out[..]).unwrap();
        let comment = SectionHeaderOption::Comment(
            "node n: frames opened with the keys of this node: the data in them are plain, so keep this file as you \
             keep those"
                .into(),
        );
        assert!(reader.section().options.contains(&comment), "{:?}", reader.section());
        let (mut packets, mut statistics, mut names) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(block) = reader.next_block() {
            match block.unwrap().into_owned() {
                Block::InterfaceDescription(it) => {
                    assert_eq!(it.linktype, DataLink::USER0);
                    names.push(it.options[0].clone());
                }
                Block::EnhancedPacket(it) => packets.push(it),
                Block::InterfaceStatistics(it) => statistics.push(it),
                other => panic!("{other:?}"),
            }
        }
        let name = |name: &'static str| InterfaceDescriptionOption::IfName(name.into());
        assert_eq!(names, [name("left"), name("memory"), name("rail 2")]);
        let seen = packets.iter().map(|it| (it.interface_id, it.data.to_vec(), it.options.clone()));
        let expected = [(1, b"one".to_vec(), OUTBOUND), (2, b"two".to_vec(), INBOUND)];
        assert!(seen.eq(expected.map(|(id, data, way)| (id, data, vec![EnhancedPacketOption::Flags(way)]))));
        assert_eq!(packets[0].timestamp, Duration::from_nanos(1_700_000_000_123_456_789));
        assert_eq!(statistics.len(), 3);
        // In the order of links.
        let of_memory = &statistics[2];
        let drops = InterfaceStatisticsOption::IsbIfDrop(7);
        assert!(of_memory.interface_id == 1 && of_memory.options.contains(&drops), "{of_memory:?}");
    }
}
