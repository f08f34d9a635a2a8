//! Where a rail of a node or a port of a switch is: at an address, or on an interface.

use toml::Spanned;

use crate::cli::Listen;

/// What a file says of one place.
pub(super) struct Place<'a> {
    /// `rail` or `port`.
    pub(super) of: &'static str,
    /// An address, as `listen` has it in an example.
    pub(super) example: &'static str,
    /// Where its name stands.
    pub(super) at: usize,
    pub(super) listen: Option<&'a Spanned<String>>,
    pub(super) ethernet: Option<&'a Spanned<String>>,
}

impl Place<'_> {
    /// Where it is; or where what is wrong.
    pub(super) fn find(&self) -> Result<Listen, (usize, String)> {
        let of = self.of;
        match (self.listen, self.ethernet) {
            (Some(address), None) => match address.get_ref().parse() {
                Ok(Listen::Ethernet { interface }) => {
                    let what = format!("an interface stands behind ethernet: ethernet = \"{interface}\"");
                    Err((address.span().start, what))
                }
                Ok(listen) => Ok(listen),
                Err(error) => Err((address.span().start, error.to_string())),
            },
            (None, Some(interface)) => {
                Listen::on(interface.get_ref()).map_err(|error| (interface.span().start, error.to_string()))
            }
            (Some(_), Some(interface)) => {
                Err((interface.span().start, format!("a {of} has listen or ethernet, not both")))
            }
            (None, None) => {
                let example = self.example;
                let what = format!("a {of} needs listen = \"{example}\" or ethernet = \"INTERFACE\"");
                Err((self.at, what))
            }
        }
    }
}
