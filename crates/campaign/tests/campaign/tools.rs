//! The tools inside a machine, against a server that others wrote: they pass when all is right, and fail when the
//! drive lies.

use campaign::process::{Process, poll_until, run};
use campaign::tools::{self, FioJob};
use campaign::world::{World, WorldConfig};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// nbdkit in the left machine, and the address of its export.
fn serve(world: &World, name: &str, arguments: &[&str]) -> (Process, String) {
    let socket = world.left().dir().join(name);
    let mut command = world.left().command("nbdkit");
    command.args(["--foreground", "--unix"]).arg(&socket).args(arguments);
    let server = world.left().spawn(name, command).unwrap();
    poll_until("nbdkit's socket", LONG, || Ok(socket.exists().then_some(()))).unwrap();
    (server, format!("nbd+unix:///?socket={}", socket.display()))
}

#[test]
fn fio_and_nbdcopy_pass_on_a_sound_drive_and_fail_on_a_lying_one() {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let (_sound, uri) = serve(&world, "sound", &["memory", "64M"]);
    let original = world.left().dir().join("original.img");
    let copy = world.left().dir().join("copy.img");
    tools::random_image(&original, 32 * MIB, 1).unwrap();
    tools::nbdcopy(world.left(), original.to_str().unwrap(), &uri).unwrap();
    tools::empty_image(&copy, 64 * MIB).unwrap();
    tools::nbdcopy(world.left(), &uri, copy.to_str().unwrap()).unwrap();
    assert_eq!(tools::sha256_of_start(&copy, 32 * MIB).unwrap(), tools::sha256(&original).unwrap());

    let job = |uri| FioJob {
        uri,
        pattern: "randwrite",
        block_size: "512-64k",
        depth: 16,
        offset: 32 * MIB,
        size: 16 * MIB,
        seed: 1,
    };
    job(&uri).start(world.left(), "fio-sound").unwrap().wait_success(LONG).unwrap();
    tools::nbdcopy(world.left(), &uri, copy.to_str().unwrap()).unwrap();
    assert_eq!(tools::sha256_of_start(&copy, 32 * MIB).unwrap(), tools::sha256(&original).unwrap());

    // It says yes to every write and keeps none of them.
    let (_lying, uri) = serve(&world, "lying", &["null", "64M"]);
    job(&uri).start(world.left(), "fio-lying").unwrap().wait_success(LONG).unwrap_err();
    assert!(run(world.left().command("false")).is_err());
}
