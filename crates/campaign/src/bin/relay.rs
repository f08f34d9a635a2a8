//! The process that a [`campaign::relay::Relay`] holds. It ends with its standard input.

use campaign::Error;
use campaign::relay::forward::{Forwarder, RelayConfig};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse(&arguments).and_then(|config| serve(&config).map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("causeway-relay: {what}");
            ExitCode::FAILURE
        }
    }
}

fn serve(config: &RelayConfig) -> Result<(), Error> {
    let mut forwarder = Forwarder::new(config)?;
    println!("ready");
    // Not `Stdin` itself: its buffer would hide commands from poll.
    let commands =
        std::io::stdin().as_fd().try_clone_to_owned().map_err(Error::io("cannot copy standard input"))?;
    forwarder.run(File::from(commands), std::io::stdout())
}

/// `FACING_LEFT_PID FACING_RIGHT_PID RAILS SEED PORT,PORT.. [CAPTURE]`: only the library starts this.
fn parse(arguments: &[String]) -> Result<RelayConfig, String> {
    let (required, capture) = match arguments {
        [required @ .., capture] if required.len() == 5 => (required, Some(capture.into())),
        required => (required, None),
    };
    let [facing_left, facing_right, rails, seed, ports] = required else {
        return Err("usage: FACING_LEFT_PID FACING_RIGHT_PID RAILS SEED PORT,PORT.. [CAPTURE]".into());
    };
    let ports = ports.split(',').map(number).collect::<Result<_, _>>()?;
    Ok(RelayConfig {
        facing_left: number(facing_left)?,
        facing_right: number(facing_right)?,
        rails: number(rails)?,
        seed: number(seed)?,
        capture,
        ports,
    })
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word} is not a number that fits"))
}
