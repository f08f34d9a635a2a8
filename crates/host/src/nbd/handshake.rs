//! The handshake: greeting, client flags, options (NBD «Protocol phases», «Option types»).

use base::ledger::PAGE_SIZE;
use spec::nbd::handshake::{EXPORT_NAME_PADDING, parse_name};
use spec::nbd::{
    ClientFlags, ExportNameReply, HandshakeFlags, InfoBlockSize, InfoExport, InfoRequest, OptionCode,
    OptionHeader, OptionReplyHeader, OptionReplyType, ServerHello, TransmissionFlags,
};
use zerocopy::IntoBytes;

use super::cells::{HEADER_BYTES, MAX_PAYLOAD, agreed};
use super::{Phase, Server};

const OPTION_BYTES: usize = size_of::<OptionHeader>();
/// The longest payload of an option that is looked at: the longest name, and room for many requests.
const OPTION_MAX: usize = 8192;
/// Replies that the longest answer to an option takes.
const REPLIES_MAX: usize = 8;
/// Blocks that clients better use, in bytes.
const PREFERRED_BYTES: u32 = PAGE_SIZE as u32;

impl Server<'_> {
    pub(super) fn greet(&self, slot: usize) {
        let flags = HandshakeFlags(0).with_fixed_newstyle(true).with_no_zeroes(true);
        self.set_phase(slot, Phase::Flags);
        self.push_output(slot, &[ServerHello::new(flags).as_bytes()], None);
    }

    pub(super) fn parse_flags(&mut self, slot: usize) -> bool {
        let mut bytes = [0; 4];
        if self.available(slot) < bytes.len() {
            return false;
        }
        self.peek(slot, 0, &mut bytes);
        self.consume(slot, bytes.len());
        let flags = ClientFlags(u32::from_be_bytes(bytes));
        if flags.reserved_bits() != 0 || !flags.fixed_newstyle() {
            return self.break_off(slot);
        }
        if flags.no_zeroes() {
            self.agree(slot, agreed::NO_ZEROES);
        }
        self.set_phase(slot, Phase::Options);
        true
    }

    pub(super) fn parse_option(&mut self, slot: usize) -> bool {
        let mut bytes = [0; OPTION_BYTES];
        if self.available(slot) < OPTION_BYTES || self.output_room(slot) < REPLIES_MAX {
            return false;
        }
        self.peek(slot, 0, &mut bytes);
        let Ok(header) = OptionHeader::parse(&bytes) else { return self.break_off(slot) };
        let (option, length) = (header.option(), header.length.get());
        if length as usize > OPTION_MAX {
            return self.pass_over(slot, option, length);
        }
        let mut payload = [0; OPTION_MAX];
        // Longer ones were passed over.
        let payload = &mut payload[..length as usize];
        if self.available(slot) < OPTION_BYTES + payload.len() {
            return false;
        }
        let needs_drive = matches!(option, OptionCode::EXPORT_NAME | OptionCode::INFO | OptionCode::GO);
        if needs_drive && self.cells.known.get() == 0 {
            return false;
        }
        self.peek(slot, OPTION_BYTES, payload);
        self.consume(slot, OPTION_BYTES + payload.len());
        self.answer(slot, option, payload)
    }

    /// An option too long for us.
    fn pass_over(&mut self, slot: usize, option: OptionCode, length: u32) -> bool {
        if option == OptionCode::EXPORT_NAME {
            return self.break_off(slot);
        }
        self.consume(slot, OPTION_BYTES);
        self.reply(slot, option, OptionReplyType::ERR_TOO_BIG, &[]);
        self.connection(slot).skip.set(self.journal, length);
        self.set_phase(slot, Phase::SkipOption);
        true
    }

    fn answer(&mut self, slot: usize, option: OptionCode, payload: &[u8]) -> bool {
        match option {
            OptionCode::EXPORT_NAME => return self.export_name(slot, payload),
            OptionCode::INFO | OptionCode::GO => self.inform(slot, option, payload),
            OptionCode::ABORT => {
                self.reply(slot, option, OptionReplyType::ACK, &[]);
                self.set_phase(slot, Phase::Closing);
                return false;
            }
            OptionCode::LIST | OptionCode::STRUCTURED_REPLY if !payload.is_empty() => {
                self.reply(slot, option, OptionReplyType::ERR_INVALID, &[]);
            }
            OptionCode::LIST => {
                // One export with an empty name.
                self.reply(slot, option, OptionReplyType::SERVER, &0_u32.to_be_bytes());
                self.reply(slot, option, OptionReplyType::ACK, &[]);
            }
            OptionCode::STRUCTURED_REPLY => {
                self.agree(slot, agreed::STRUCTURED);
                self.reply(slot, option, OptionReplyType::ACK, &[]);
            }
            _ => self.reply(slot, option, OptionReplyType::ERR_UNSUP, &[]),
        }
        true
    }

    /// The one option that cannot be refused but by disconnecting.
    fn export_name(&mut self, slot: usize, payload: &[u8]) -> bool {
        if parse_name(payload) != Ok("") {
            return self.break_off(slot);
        }
        let reply = ExportNameReply::new(self.size(), self.transmission_flags(slot));
        self.push_output(slot, &[reply.as_bytes()], None);
        if self.connection(slot).agreed.get() & agreed::NO_ZEROES == 0 {
            for piece in [0; EXPORT_NAME_PADDING].chunks(HEADER_BYTES) {
                self.push_output(slot, &[piece], None);
            }
        }
        self.set_phase(slot, Phase::Transmission);
        true
    }

    fn inform(&mut self, slot: usize, option: OptionCode, payload: &[u8]) {
        match InfoRequest::parse(payload) {
            Err(error) => return self.reply(slot, option, error.reply(), &[]),
            Ok(request) if !request.name.is_empty() => {
                return self.reply(slot, option, OptionReplyType::ERR_UNKNOWN, &[]);
            }
            Ok(_) => {}
        }
        let export = InfoExport::new(self.size(), self.transmission_flags(slot));
        let minimum = self.cells.block_size.get();
        let sizes = InfoBlockSize::new(minimum, PREFERRED_BYTES.max(minimum), MAX_PAYLOAD);
        self.reply(slot, option, OptionReplyType::INFO, export.as_bytes());
        self.reply(slot, option, OptionReplyType::INFO, sizes.as_bytes());
        self.reply(slot, option, OptionReplyType::ACK, &[]);
        if option == OptionCode::GO {
            self.set_phase(slot, Phase::Transmission);
        }
    }

    fn reply(&self, slot: usize, option: OptionCode, reply: OptionReplyType, payload: &[u8]) {
        let header = OptionReplyHeader::new(option, reply, payload.len() as u32);
        self.push_output(slot, &[header.as_bytes(), payload], None);
    }

    pub(super) fn agree(&self, slot: usize, bit: u8) {
        self.connection(slot).agreed.update(self.journal, |agreed| agreed | bit);
    }

    /// Bytes of the export.
    pub(super) fn size(&self) -> u64 {
        self.cells.blocks.get().saturating_mul(self.cells.block_size.get().into())
    }

    fn transmission_flags(&self, slot: usize) -> TransmissionFlags {
        TransmissionFlags(0)
            .with_has_flags(true)
            .with_read_only(self.cells.read_only.get() != 0)
            .with_send_flush(true)
            .with_send_fua(true)
            .with_send_trim(true)
            .with_send_write_zeroes(true)
            .with_send_df(self.connection(slot).agreed.get() & agreed::STRUCTURED != 0)
            .with_can_multi_conn(true)
            .with_send_fast_zero(true)
    }
}
