use base::ids::DomainId;
use pcie::{Bdf, Header};

use crate::{APERTURE_BITS, FabricAddress, Rail};

/// A non-transparent bridge out of a domain: adds the target's domain and rail to an address, and rewrites the
/// requester to the id by which the target knows it.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The domain behind the window.
    pub domain: DomainId,
    /// The rail it uses.
    pub rail: Rail,
    /// What requesters become.
    pub requester: Bdf,
}

/// Why a TLP cannot pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowError {
    /// The address does not fit into an aperture.
    BeyondAperture(u64),
}

impl Window {
    /// `address` of the domain behind the window, as the fabric knows it.
    pub fn translate(&self, address: u64) -> Result<u64, WindowError> {
        if address >> APERTURE_BITS != 0 {
            return Err(WindowError::BeyondAperture(address));
        }
        Ok(FabricAddress { rail: self.rail, domain: self.domain, offset: address }.encode())
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
    fn a_window_adds_domain_and_rail_and_rewrites_the_requester() {
        let window = Window { domain: DomainId(5), rail: Rail::new(1).unwrap(), requester: Bdf(0x100) };
        let request = MemoryRequest::new(Bdf(3), Tag::new(9).unwrap(), 0x1234_5000, 64).unwrap();
        let Ok(Header::MemoryRead(passed)) = window.pass(Header::MemoryRead(request)) else { panic!() };
        let address = FabricAddress::decode(passed.address);
        assert_eq!((address.rail.get(), address.domain, address.offset), (1, DomainId(5), 0x1234_5000));
        assert_eq!((passed.requester, passed.tag), (Bdf(0x100), request.tag));
    }

    #[test]
    fn what_is_beyond_the_aperture_is_refused_by_name() {
        let window = Window { domain: DomainId(5), rail: Rail::default(), requester: Bdf(0) };
        assert_eq!(window.translate(1 << 44), Err(WindowError::BeyondAperture(1 << 44)));
    }
}
