//! Loans whose sockets tests connect to.

use std::os::unix::net::UnixStream;

use node::FunctionId;

use super::*;

/// A loan with a socket to which so many have connected.
pub(super) fn listening(
    name: &str,
    callers: usize,
    edge: impl FnOnce(PathBuf, Option<UnixListener>) -> Edge,
) -> ([LoanSpec; 1], Vec<UnixStream>) {
    let path = std::env::temp_dir().join(format!("causeway-accept-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let connect = |_| {
        let caller = UnixStream::connect(&path).unwrap();
        caller.set_nonblocking(true).unwrap();
        caller
    };
    let callers = (0..callers).map(connect).collect();
    std::fs::remove_file(&path).unwrap();
    let end = LoanEnd::Borrow {
        lender: Lender::default(),
        peers: "127.0.0.1:9".parse().unwrap(),
        edge: edge(path, Some(listener)),
        io_timeout: Duration::from_secs(1),
    };
    let config = LoanConfig::new(Secret([0; 32]), FunctionId(0), end);
    ([LoanSpec { function: "nvme0".to_owned(), config, hold: None }], callers)
}

/// How many of them have been sent away.
pub(super) fn ends(callers: &[UnixStream]) -> usize {
    let is_over = |mut caller: &UnixStream| std::io::Read::read(&mut caller, &mut [0; 1]).is_ok();
    callers.iter().filter(|caller| is_over(caller)).count()
}
