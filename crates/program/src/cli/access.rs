//! Who may connect to a socket.

use clap::Args;

use super::ValueError;

/// Owner and rights of a slot's socket. Who can connect has the drive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct SocketAccess {
    /// Owner of the socket, by name or number [default: whoever runs this]
    #[arg(long = "vm-owner", value_name = "USER", conflicts_with = "nbd")]
    pub owner: Option<String>,
    /// Group of the socket, by name or number [default: that of whoever runs this]
    #[arg(long = "vm-group", value_name = "GROUP", conflicts_with = "nbd")]
    pub group: Option<String>,
    /// Rights of the socket, octal, such as 0660 [default: as the umask has it; 0600 with another owner or group]
    #[arg(long = "vm-mode", value_name = "MODE", conflicts_with = "nbd", value_parser = mode)]
    pub mode: Option<u32>,
}

impl SocketAccess {
    /// Whether anything is to be other than the system makes it.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Rights in octal digits.
pub fn mode(text: &str) -> Result<u32, ValueError> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let parsed = if digits.starts_with(['+', '-']) { None } else { u32::from_str_radix(digits, 8).ok() };
    parsed.filter(|mode| *mode <= 0o777).ok_or_else(|| {
        ValueError::new(format!("`{}` is no mode; write octal digits, such as 0660", text.escape_debug()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!(mode("0660"), Ok(0o660));
        assert_eq!(mode("600"), Ok(0o600));
        assert_eq!(mode("0o777"), Ok(0o777));
        for wrong in ["", "rw", "888", "1000", "+600", "-1"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }
}
