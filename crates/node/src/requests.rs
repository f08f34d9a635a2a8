//! A host's requests to its function as TLPs, and what comes back of them: the same for every edge.

use base::{INLINE_MAX, Instant, Payload};
use fabric::Window;
use host::{Access, AccessError, AccessId};
use link::Port;
use pcie::{
    Bdf, Completion, CompletionStatus, ConfigKind, ConfigRequest, FlowClass, Header, MemoryRequest, Tag,
};

use crate::apertures;
use crate::cells::EdgeGauges;

/// The offset lies in no BAR that could be named in the fabric: nothing was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unreachable;

/// Whether one more request of any kind can be queued in this step.
pub(crate) fn has_room(port: &Port<'_>) -> bool {
    let room = port.sender.has_room(FlowClass::Posted) && port.sender.has_room(FlowClass::NonPosted);
    room && port.tags.has_room()
}

/// Queues an access to `function`, as its host calls it. There is room.
pub(crate) fn issue(
    now: Instant,
    port: &mut Port<'_>,
    (window, function): (&Window, Bdf),
    access: Access,
) -> Result<(), Unreachable> {
    let (header, payload) = match access {
        Access::Write { bar, offset, payload } => {
            let request = memory(Tag::default(), bar, offset, payload.len())?;
            (Header::MemoryWrite(request), padded(&request, payload)?)
        }
        Access::Read { id, bar, offset, len } => {
            // Asked for first: a tag is for what is sent.
            let request = memory(Tag::default(), bar, offset, len.into())?;
            let tag = tag(now, port, window, id, len.into());
            (Header::MemoryRead(MemoryRequest { tag, ..request }), Payload::None)
        }
        Access::ConfigRead { id, register } => {
            let request = config(function, tag(now, port, window, id, 4), register, 0xf);
            (Header::ConfigRead(request), Payload::None)
        }
        Access::ConfigWrite { id, register, value, byte_enables } => {
            let request = config(function, tag(now, port, window, id, 0), register, byte_enables);
            (Header::ConfigWrite(request), Payload::inline(&value.to_le_bytes()))
        }
    };
    send(port, window, header, payload);
    Ok(())
}

/// What a completion says to whoever asked: the name of the request, and what came of it. Nothing of one that is
/// unexpected, too late or not the last of its request.
pub(crate) fn completed<'p>(
    port: &mut Port<'_>,
    gauges: &EdgeGauges,
    completion: &Completion,
    payload: &'p [u8],
) -> Option<(AccessId, Result<&'p [u8], AccessError>)> {
    let Some(done) = port.tags.complete(completion) else {
        gauges.unexpected_completions.add(1);
        return None;
    };
    if !done.wanted || !done.last {
        return None;
    }
    let data = payload.get(completion.padding()..completion.padding() + completion.data_len());
    let result = match (completion.status, data) {
        (CompletionStatus::Success, Some(data)) if !completion.poisoned => Ok(data),
        (CompletionStatus::UnsupportedRequest, _) => Err(AccessError::UnsupportedRequest),
        _ => Err(AccessError::Aborted),
    };
    Some((AccessId(done.context), result))
}

/// The next request that has had no completion in time.
pub(crate) fn poll_timed_out(now: Instant, port: &mut Port<'_>, gauges: &EdgeGauges) -> Option<AccessId> {
    let timed_out = port.tags.poll_timed_out(now)?;
    gauges.completion_timeouts.add(1);
    Some(AccessId(timed_out.context))
}

/// What is sent are whole dwords.
fn padded(request: &MemoryRequest, payload: Payload) -> Result<Payload, Unreachable> {
    let Payload::Inline(bytes) = payload else { return Ok(payload) };
    let (start, len, bytes) = (request.padding(), usize::from(request.length_dw) * 4, bytes.as_slice());
    let mut dwords = [0; INLINE_MAX];
    let padded = dwords.get_mut(..len).ok_or(Unreachable)?;
    padded.get_mut(start..start + bytes.len()).ok_or(Unreachable)?.copy_from_slice(bytes);
    Ok(Payload::inline(padded))
}

fn send(port: &mut Port<'_>, window: &Window, header: Header, payload: Payload) {
    // `bar_address` has put it there; registers of configuration space have no address.
    let header = window.pass(header).expect("BARs lie inside of the aperture");
    port.sender.push(&header, payload, false);
}

fn memory(tag: Tag, bar: u8, offset: u64, len: usize) -> Result<MemoryRequest, Unreachable> {
    // The window says who asks.
    let address = apertures::bar_address(bar, offset).ok_or(Unreachable)?;
    MemoryRequest::new(Bdf::default(), tag, address, len).map_err(|_| Unreachable)
}

fn tag(now: Instant, port: &mut Port<'_>, window: &Window, id: AccessId, len: usize) -> Tag {
    // Each caller asks `has_room` before a request.
    port.tags.alloc(now, window.requester(), id.0, len).expect("callers have asked for room")
}

fn config(target: Bdf, tag: Tag, register: u16, first_be: u8) -> ConfigRequest {
    ConfigRequest {
        requester: Bdf::default(),
        tag,
        target,
        register,
        first_be,
        kind: ConfigKind::Type0,
        poisoned: false,
    }
}
