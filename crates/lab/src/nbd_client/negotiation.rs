//! The negotiation: `NBD §Newstyle negotiation`.

use std::time::Instant;

use super::error::{NbdError, protocol};
use super::geometry::{BlockSizes, TransmissionFlags};
use super::{ConnectOptions, DEFAULT_MAXIMUM_LENGTH, NbdClient};

// NBD §Newstyle negotiation, §Option types, §Option reply types.
const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const HANDSHAKE_FIXED_NEWSTYLE: u16 = 1 << 0;
const HANDSHAKE_NO_ZEROES: u16 = 1 << 1;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_ERROR: u32 = 1 << 31;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

/// The largest option reply this client takes; real ones are below 200 bytes.
const OPTION_REPLY_MAX: u32 = 64 << 10;

impl NbdClient {
    /// Fills `geometry` and `structured`.
    pub(super) fn negotiate(&mut self, options: &ConnectOptions<'_>) -> Result<(), NbdError> {
        let deadline = self.connection.deadline();
        if self.connection.take_u64(deadline)? != INIT_MAGIC
            || self.connection.take_u64(deadline)? != OPTION_MAGIC
        {
            return Err(protocol("what listens there is not a newstyle NBD server".into()));
        }
        let handshake = self.connection.take_u16(deadline)?;
        if handshake & HANDSHAKE_FIXED_NEWSTYLE == 0 {
            return Err(protocol("the server is not of the fixed newstyle".into()));
        }
        let client_flags = handshake & (HANDSHAKE_FIXED_NEWSTYLE | HANDSHAKE_NO_ZEROES);
        self.connection.send(&u32::from(client_flags).to_be_bytes())?;
        if options.structured {
            self.structured = self.ask_structured(deadline)?;
        }
        self.go(options.export, deadline)
    }

    fn ask_structured(&mut self, deadline: Instant) -> Result<bool, NbdError> {
        self.send_option(OPT_STRUCTURED_REPLY, &[])?;
        let (kind, _) = self.option_reply(OPT_STRUCTURED_REPLY, deadline)?;
        match kind {
            REP_ACK => Ok(true),
            _ if kind & REP_ERROR != 0 => Ok(false),
            _ => Err(protocol(format!("reply type {kind} to NBD_OPT_STRUCTURED_REPLY"))),
        }
    }

    fn go(&mut self, export: &str, deadline: Instant) -> Result<(), NbdError> {
        // NBD §Metadata: a name is at most 4096 bytes.
        let name_length = u32::try_from(export.len()).ok().filter(|&length| length <= 4096);
        let name_length =
            name_length.ok_or_else(|| NbdError::Usage("an export name above 4096 bytes".into()))?;
        let mut payload = name_length.to_be_bytes().to_vec();
        payload.extend_from_slice(export.as_bytes());
        payload.extend_from_slice(&1u16.to_be_bytes());
        payload.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
        self.send_option(OPT_GO, &payload)?;
        let mut described = false;
        loop {
            let (kind, body) = self.option_reply(OPT_GO, deadline)?;
            match kind {
                REP_ACK if described => return Ok(()),
                REP_ACK => return Err(protocol("NBD_OPT_GO ended without NBD_INFO_EXPORT".into())),
                REP_INFO => described |= self.info(&body)?,
                _ if kind & REP_ERROR != 0 => {
                    return Err(NbdError::Negotiation {
                        option: "NBD_OPT_GO",
                        why: option_error(kind, &body),
                    });
                }
                _ => return Err(protocol(format!("reply type {kind} to NBD_OPT_GO"))),
            }
        }
    }

    /// One `NBD_REP_INFO`; true if it was `NBD_INFO_EXPORT`. Unknown kinds are skipped, as the protocol asks.
    fn info(&mut self, body: &[u8]) -> Result<bool, NbdError> {
        let kind = body.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
        match (kind, body.len()) {
            (Some(INFO_EXPORT), 12) => {
                self.geometry.size = be_u64(body, 2);
                self.geometry.flags = TransmissionFlags((be_u32(body, 8) & 0xffff) as u16);
                Ok(true)
            }
            (Some(INFO_BLOCK_SIZE), 14) => {
                let maximum = be_u32(body, 10).min(DEFAULT_MAXIMUM_LENGTH);
                let sizes = BlockSizes { minimum: be_u32(body, 2), preferred: be_u32(body, 6), maximum };
                if !sizes.minimum.is_power_of_two()
                    || sizes.preferred < sizes.minimum
                    || maximum < sizes.minimum
                {
                    return Err(protocol(format!("impossible block sizes: {sizes:?}")));
                }
                self.geometry.block_sizes = sizes;
                Ok(false)
            }
            (Some(INFO_EXPORT | INFO_BLOCK_SIZE) | None, length) => {
                Err(protocol(format!("an NBD_REP_INFO of {length} bytes")))
            }
            _ => Ok(false),
        }
    }

    fn send_option(&mut self, option: u32, payload: &[u8]) -> Result<(), NbdError> {
        let length =
            u32::try_from(payload.len()).map_err(|_| NbdError::Usage("an option above 4 GiB".into()))?;
        let mut frame = OPTION_MAGIC.to_be_bytes().to_vec();
        frame.extend_from_slice(&option.to_be_bytes());
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(payload);
        self.connection.send(&frame)
    }

    /// `NBD §Fixed newstyle negotiation`: one reply to `option`: its type and its payload.
    fn option_reply(&mut self, option: u32, deadline: Instant) -> Result<(u32, Vec<u8>), NbdError> {
        let magic = self.connection.take_u64(deadline)?;
        let answered = self.connection.take_u32(deadline)?;
        let kind = self.connection.take_u32(deadline)?;
        let length = self.connection.take_u32(deadline)?;
        if magic != OPTION_REPLY_MAGIC || answered != option || length > OPTION_REPLY_MAX {
            return Err(protocol(format!(
                "an option reply with magic {magic:#x}, option {answered}, {length} bytes"
            )));
        }
        let mut body = vec![0; length as usize];
        self.connection.take_into(&mut body, deadline)?;
        Ok((kind, body))
    }
}

/// The server's text for an option error, or the protocol's name of its type.
fn option_error(kind: u32, body: &[u8]) -> String {
    let name = match kind & !REP_ERROR {
        1 => "NBD_REP_ERR_UNSUP",
        2 => "NBD_REP_ERR_POLICY",
        3 => "NBD_REP_ERR_INVALID",
        4 => "NBD_REP_ERR_PLATFORM",
        5 => "NBD_REP_ERR_TLS_REQD",
        6 => "NBD_REP_ERR_UNKNOWN",
        7 => "NBD_REP_ERR_SHUTDOWN",
        8 => "NBD_REP_ERR_BLOCK_SIZE_REQD",
        9 => "NBD_REP_ERR_TOO_BIG",
        _ => "an error type the protocol does not name",
    };
    let text = String::from_utf8_lossy(body);
    if text.is_empty() { name.into() } else { format!("{name}: {text}") }
}

/// Reads at a fixed place; the caller has checked the length.
fn be_u32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |value, &byte| value << 8 | u32::from(byte))
}

fn be_u64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
