//! The process that a [`campaign::relay::Relay`] holds. It ends with its standard input.

use campaign::Error;
use campaign::relay::detour;
use campaign::relay::forward::{Carries, Forwarder, RelayConfig};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let served = match &arguments[..] {
        [mode, ends @ ..] if mode == "detour" => serve_detour(ends),
        relay => parse(relay).and_then(|config| serve(&config).map_err(|error| error.to_string())),
    };
    match served {
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
    forwarder.run(commands()?, std::io::stdout())
}

/// `detour PROGRAM NEAR FAR OTHER`: only the library starts this.
fn serve_detour(ends: &[String]) -> Result<(), String> {
    let ends = ends.iter().map(|end| parsed(end)).collect::<Result<Vec<_>, _>>()?;
    let ends = ends.try_into().map_err(|_| "usage: detour PROGRAM NEAR FAR OTHER".to_owned())?;
    commands().and_then(|commands| detour::serve(ends, commands)).map_err(|error| error.to_string())
}

/// Not `Stdin` itself: its buffer would hide commands from poll.
fn commands() -> Result<File, Error> {
    let commands = std::io::stdin().as_fd().try_clone_to_owned();
    commands.map(File::from).map_err(Error::io("cannot copy standard input"))
}

/// `FACING_LEFT_PID FACING_RIGHT_PID RAILS SEED PORT,PORT..|ethernet [CAPTURE]`: only the library starts this.
fn parse(arguments: &[String]) -> Result<RelayConfig, String> {
    let (required, capture) = match arguments {
        [required @ .., capture] if required.len() == 5 => (required, Some(capture.into())),
        required => (required, None),
    };
    let [facing_left, facing_right, rails, seed, carries] = required else {
        return Err(
            "usage: FACING_LEFT_PID FACING_RIGHT_PID RAILS SEED PORT,PORT..|ethernet [CAPTURE]".into()
        );
    };
    let carries = match carries.as_str() {
        "ethernet" => Carries::Ethernet,
        ports => Carries::Udp(ports.split(',').map(parsed).collect::<Result<_, _>>()?),
    };
    Ok(RelayConfig {
        facing_left: parsed(facing_left)?,
        facing_right: parsed(facing_right)?,
        rails: parsed(rails)?,
        seed: parsed(seed)?,
        capture,
        carries,
    })
}

fn parsed<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word} is not what fits"))
}
