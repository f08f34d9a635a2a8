//! debug
#![allow(clippy::unwrap_used)]
use campaign::causeway::{Borrower, Lender, status};
use campaign::load::{Load, Model};
use campaign::world::{World, WorldConfig};
use campaign::tools;
use std::time::{Duration, Instant};
const MIB: u64 = 1 << 20;
#[test]
fn zz() {
    let kinds = std::env::var("ZZ").unwrap_or("dmm".into());
    let connections: u64 = std::env::var("ZC").unwrap_or("4".into()).parse().unwrap();
    let world = World::new(&WorldConfig::default()).unwrap();
    let image = world.right().dir().join("disk.img");
    tools::empty_image(&image, 16 * MIB).unwrap();
    let sources: Vec<&str> = kinds.chars().map(|k| if k == 'd' { image.to_str().unwrap() } else { "ram:16M" }).collect();
    let lender = Lender::start(world.right(), &sources, &["--log-level", "debug"]).unwrap();
    let mut borrowers = Vec::new();
    for (index, line) in lender.lines.iter().enumerate() {
        borrowers.push(Borrower::start_as(world.left(), &format!("borrower{index}"), line, &["--log-level", "debug"]).unwrap());
    }
    let mut loads = Vec::new();
    for (index, borrower) in borrowers.iter().enumerate() {
        for connection in 0..connections {
            loads.push((index, Load::start(&borrower.socket, Model::new(connection * MIB, MIB, connection), 4).unwrap()));
        }
    }
    let start = Instant::now();
    let mut last: Vec<(u64, Instant)> = loads.iter().map(|_| (0, Instant::now())).collect();
    while start.elapsed() < Duration::from_secs(40) {
        std::thread::sleep(Duration::from_millis(100));
        for (i, (index, load)) in loads.iter().enumerate() {
            if load.done() != last[i].0 { last[i] = (load.done(), Instant::now()); }
            if last[i].1.elapsed() > Duration::from_secs(4) {
                let ages: Vec<_> = loads.iter().zip(&last).map(|((b, l), (_, at))| (*b, l.done(), at.elapsed().as_millis())).collect();
                println!("STALL load {i} of borrower {index} at {:?}: {ages:?}", start.elapsed());
                println!("{}", serde_json::to_string_pretty(&status(world.left(), &format!("borrower{index}")).unwrap()).unwrap());
                println!("{}", serde_json::to_string_pretty(&status(world.right(), "lender").unwrap()).unwrap());
                println!("{} {}", world.dir().display(), borrowers[*index].process.pid());
                std::thread::sleep(Duration::from_secs(std::env::var("ZS").unwrap_or("1".into()).parse().unwrap()));
                let ages: Vec<_> = loads.iter().map(|(b, l)| (*b, l.done(), l.failed())).collect();
                println!("{ages:?}");
                panic!();
            }
        }
    }
}
