//! TLPs of a peer: at addresses that mean something, with tags that are out, or any bytes.

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use pcie::{
    Bdf, Completion, CompletionStatus, ConfigKind, ConfigRequest, Header, MemoryRequest, Message,
    MessageCode, MessageRouting, Tag,
};

/// What the far end of the stream expects now.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The number of the next TLP it takes.
    pub expected: u64,
    /// The number it will give next to one of its own.
    pub numbered: u64,
    /// About how many packets it has sent.
    pub packets: u64,
    /// Who the peer is, and to whom it talks.
    pub requester: Bdf,
    /// Addresses that lead somewhere.
    pub bases: Vec<u64>,
    /// Its requests that wait for completions.
    pub requests: Vec<Header>,
    /// The number of the stream, the function that it is for, and its secret.
    pub stream: u32,
    pub function: u32,
    pub secret: [u8; 32],
    /// Names the handshake whose keys are in use.
    pub handshake: [u8; 32],
}

#[derive(Arbitrary, Debug)]
pub enum Tlp {
    Write { base: u8, offset: u32, lead: u8, data: Vec<u8>, poisoned: bool },
    Read { base: u8, offset: u32, len: u16, tag: u16 },
    ConfigRead { register: u16, tag: u16 },
    ConfigWrite { register: u16, value: u32, enables: u8, tag: u16 },
    Complete { request: u8, status: u8, data: Vec<u8>, byte_count: Option<u16> },
    Message { code: u8, routing: u8 },
    Header([u32; 4], u16),
    Raw(Vec<u8>),
}

impl Tlp {
    /// The bytes of the packet; none where its parts make none.
    pub fn encode(&self, context: &Context) -> Vec<u8> {
        match self {
            Self::Raw(bytes) => bytes.clone(),
            Self::Header(dwords, payload) => {
                let mut bytes: Vec<u8> = dwords.iter().flat_map(|dword| dword.to_be_bytes()).collect();
                bytes.resize(bytes.len() + usize::from(*payload % 4100), 0x5a);
                bytes
            }
            _ => self.header(context).map(|(header, data)| packet(&header, data)).unwrap_or_default(),
        }
    }

    fn header(&self, context: &Context) -> Option<(Header, &[u8])> {
        let requester = context.requester;
        let tag = |tag: u16| Tag::new(tag % 1024).expect("ten bits are a tag");
        let at = |base: u8, offset: u32| {
            context.bases.get(usize::from(base) % context.bases.len().max(1)).copied().unwrap_or(0)
                + u64::from(offset)
        };
        Some(match self {
            Self::Write { base, offset, lead, data, poisoned } => {
                let address = at(*base, *offset) + u64::from(lead % 4);
                let mut request = MemoryRequest::new(requester, tag(0), address, data.len()).ok()?;
                request.poisoned = *poisoned;
                (Header::MemoryWrite(request), data)
            }
            Self::Read { base, offset, len, tag: number } => {
                let len = usize::from(*len);
                let request = MemoryRequest::new(requester, tag(*number), at(*base, *offset), len).ok()?;
                (Header::MemoryRead(request), &[])
            }
            Self::ConfigRead { register, tag: number } => {
                (Header::ConfigRead(config(requester, tag(*number), *register, 0xf)), &[])
            }
            Self::ConfigWrite { register, enables, tag: number, .. } => {
                (Header::ConfigWrite(config(requester, tag(*number), *register, enables & 0xf)), &[])
            }
            Self::Complete { request, status, data, byte_count } => {
                let request = context.requests.get(usize::from(*request) % context.requests.len().max(1))?;
                let status = CompletionStatus::from_bits(*status);
                let len = (data.len() / 4 * 4).min(4096);
                let success = status == CompletionStatus::Success && len > 0;
                let lower = match request {
                    Header::MemoryRead(read) => read.byte_range().0 as u8 & 0x7f,
                    _ => 0,
                };
                let completion = Completion {
                    byte_count: byte_count.unwrap_or(if success { len as u16 } else { 4 }),
                    lower_address: lower,
                    length_dw: if success { (len / 4) as u16 } else { 0 },
                    ..Completion::without_data(request.requester(), request.tag(), requester, status)
                };
                (Header::Completion(completion), &data[..if success { len } else { 0 }])
            }
            Self::Message { code, routing } => {
                let codes = [MessageCode::ERR_COR, MessageCode::ERR_NONFATAL, MessageCode::ERR_FATAL];
                let routings = [MessageRouting::ToRootComplex, MessageRouting::Local];
                let code = codes[usize::from(*code) % codes.len()];
                let routing = routings[usize::from(*routing) % routings.len()];
                (Header::Message(Message::new(requester, code, routing)), &[])
            }
            Self::Header(..) | Self::Raw(_) => return None,
        })
    }
}

fn config(requester: Bdf, tag: Tag, register: u16, first_be: u8) -> ConfigRequest {
    let (register, target) = (register & 0xffc, Bdf(0x0100));
    ConfigRequest { requester, tag, target, register, first_be, kind: ConfigKind::Type0, poisoned: false }
}

/// The packet of `header`, its payload filled up from `data`; nothing if the header may not be sent.
fn packet(header: &Header, data: &[u8]) -> Vec<u8> {
    if header.check().is_err() {
        return Vec::new();
    }
    let mut bytes = header.encode().as_bytes().to_vec();
    let end = bytes.len() + header.payload_len();
    bytes.extend(data.iter().take(header.payload_len()));
    bytes.resize(end, 0xa5);
    bytes
}
