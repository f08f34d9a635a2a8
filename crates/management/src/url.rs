//! The URL of a manager: `https://HOST:PORT`, and nothing more.

use hyper::Uri;
use thiserror::Error;

/// A text is none.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("the url `{}` is none of a manager: write https://HOST:PORT", .0.escape_debug())]
pub(crate) struct BadUrl(String);

/// Its host, without the brackets that an address of IPv6 has in a URL, and its port.
pub(crate) fn host_of(url: &str) -> Result<(String, u16), BadUrl> {
    let wrong = || BadUrl(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let at = uri.authority().filter(|at| !at.as_str().contains('@')).ok_or_else(wrong)?;
    let is_plain =
        uri.scheme_str() == Some("https") && matches!(uri.path(), "" | "/") && uri.query().is_none();
    let port = at.port_u16().filter(|_| is_plain).ok_or_else(wrong)?;
    let host = at.host().trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() { Err(wrong()) } else { Ok((host.to_owned(), port)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_and_a_port_and_nothing_more() {
        assert_eq!(host_of("https://10.0.0.1:7443"), Ok(("10.0.0.1".to_owned(), 7443)));
        assert_eq!(host_of("https://[::1]:7443/"), Ok(("::1".to_owned(), 7443)));
        let wrong = [
            "",
            "http://a:1",
            "https://a",
            "https://:1",
            "https://a:b",
            "https://u@a:1",
            "https://a:1/v1",
            "https://a:1?x",
        ];
        for wrong in wrong {
            assert!(host_of(wrong).is_err(), "{wrong}");
        }
    }
}
