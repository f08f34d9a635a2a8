use base::ids::{DomainId, RailId};
use pcie::{Bdf, Header};

use crate::grants::PAGE;
use crate::{APERTURE_BITS, FabricAddress};

/// A non-transparent bridge out of a domain: adds the target's domain and place to an address, and rewrites the
/// requester to the id by which the target knows it. Over which rail it leads is said when a frame is filled, since
/// that is another one whenever it is sent on another path.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The domain behind the window.
    domain: DomainId,
    /// Where what is behind it begins in the domain's aperture.
    base: u64,
    /// Bytes of that.
    bytes: u64,
    /// What requesters become.
    requester: Bdf,
}

/// Why a TLP cannot pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowError {
    /// The address does not fit into an aperture, or into what is behind the window.
    BeyondAperture(u64),
    /// Nothing that can be granted begins there: it is no multiple of 4096.
    Misaligned(u64),
}

impl core::fmt::Display for WindowError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::BeyondAperture(address) => write!(f, "{address:#x} is beyond the aperture"),
            Self::Misaligned(address) => write!(f, "{address:#x} is no multiple of 4096"),
        }
    }
}

impl core::error::Error for WindowError {}

impl Window {
    /// A window into all of a domain's aperture.
    pub fn new(domain: DomainId, requester: Bdf) -> Self {
        Self { domain, base: 0, bytes: 1 << APERTURE_BITS, requester }
    }

    /// The same into `bytes` from `base` on, which somebody else may have told.
    ///
    /// # Errors
    /// They do not lie in an aperture, or are no whole pages.
    pub fn into_range(
        domain: DomainId,
        (base, bytes): (u64, u64),
        requester: Bdf,
    ) -> Result<Self, WindowError> {
        if !base.is_multiple_of(PAGE) {
            return Err(WindowError::Misaligned(base));
        }
        match base.checked_add(bytes) {
            Some(end) if end <= 1 << APERTURE_BITS => {
                Ok(Self { base, bytes, ..Self::new(domain, requester) })
            }
            _ => Err(WindowError::BeyondAperture(base)),
        }
    }

    /// What requesters become.
    pub const fn requester(&self) -> Bdf {
        self.requester
    }

    /// `address` of the domain behind the window, as the fabric knows it.
    pub fn translate(&self, address: u64) -> Result<u64, WindowError> {
        if address >= self.bytes {
            return Err(WindowError::BeyondAperture(address));
        }
        Ok(FabricAddress { rail: RailId::default(), domain: self.domain, offset: self.base + address }
            .encode())
    }

    /// `header` as it leaves through the window.
    pub fn pass(&self, mut header: Header) -> Result<Header, WindowError> {
        match &mut header {
            Header::MemoryRead(request) | Header::MemoryWrite(request) => {
                request.address = self.translate(request.address)?;
                request.requester = self.requester;
            }
            Header::ConfigRead(request) | Header::ConfigWrite(request) => request.requester = self.requester,
            Header::Message(message) => message.requester = self.requester,
            Header::Completion(completion) => completion.completer = self.requester,
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use pcie::{MemoryRequest, Tag};

    use super::*;

    #[test]
    fn a_window_adds_the_domain_and_rewrites_the_requester() {
        let window = Window::new(DomainId(5), Bdf(0x100));
        let request = MemoryRequest::new(Bdf(3), Tag::new(9).unwrap(), 0x1234_5000, 64).unwrap();
        let Ok(Header::MemoryRead(passed)) = window.pass(Header::MemoryRead(request)) else { panic!() };
        let address = FabricAddress::decode(passed.address);
        assert_eq!((address.rail.get(), address.domain, address.offset), (0, DomainId(5), 0x1234_5000));
        assert_eq!((passed.requester, passed.tag), (Bdf(0x100), request.tag));
    }

    #[test]
    fn what_is_beyond_the_aperture_is_refused_by_name() {
        let window = Window::new(DomainId(5), Bdf(0));
        assert_eq!(window.translate(1 << 44), Err(WindowError::BeyondAperture(1 << 44)));
    }

    #[test]
    fn a_window_leads_to_where_its_target_lies_and_not_beside() {
        let window = Window::into_range(DomainId(5), (3 << 34, 1 << 34), Bdf(0)).unwrap();
        let translated = FabricAddress::decode(window.translate(0x2000).unwrap());
        assert_eq!((translated.domain, translated.offset), (DomainId(5), (3 << 34) + 0x2000));
        assert_eq!(window.translate(1 << 34), Err(WindowError::BeyondAperture(1 << 34)));
        let told = |base, bytes| Window::into_range(DomainId(5), (base, bytes), Bdf(0)).map(|_| ());
        assert_eq!(told((1 << 44) - 4096, 4096), Ok(()));
        assert_eq!(told((1 << 44) - 4096, 8192), Err(WindowError::BeyondAperture((1 << 44) - 4096)));
        assert_eq!(told(u64::MAX - 4095, 8192), Err(WindowError::BeyondAperture(u64::MAX - 4095)));
        assert_eq!(told(0x800, 4096), Err(WindowError::Misaligned(0x800)));
    }
}
