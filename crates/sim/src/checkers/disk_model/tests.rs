use super::*;
use crate::disk::pattern;

fn read(model: &mut DiskModel, value: u64, start: u64, end: u64) -> Verdict {
    let mut bytes = [0; 512];
    pattern(value, 0, &mut bytes);
    model.read_started(start);
    model.read_ended(0, 512, &bytes, start, end)
}

#[test]
fn a_read_returns_the_last_write_or_one_under_way() {
    let mut model = DiskModel::new(1, true);
    model.write_started(7, 7, 0..1, 1);
    read(&mut model, 0, 2, 3).unwrap();
    read(&mut model, 7, 4, 5).unwrap();
    read(&mut model, 0, 6, 7).unwrap_err();
    model.write_ended(7, false, 0..1, 8);
    model.write_started(9, 9, 0..1, 9);
    model.write_ended(9, false, 0..1, 10);
    read(&mut model, 7, 11, 12).unwrap_err();
    read(&mut model, 9, 13, 14).unwrap();
}

#[test]
fn a_write_that_was_seen_does_not_come_back_after_a_later_one() {
    let mut model = DiskModel::new(1, true);
    model.write_started(5, 5, 0..1, 1);
    read(&mut model, 5, 2, 3).unwrap();
    model.write_started(6, 6, 0..1, 4);
    model.write_ended(6, false, 0..1, 5);
    read(&mut model, 5, 6, 7).unwrap_err();
}

#[test]
fn a_write_that_a_controller_has_begun_and_the_next_one_gets_again_may_be_seen_of_both() {
    let mut model = DiskModel::new(1, true);
    model.write_started(5, 5, 0..1, 1);
    model.write_started(6, 6, 0..1, 2);
    model.asked_again(3);
    read(&mut model, 5, 4, 5).unwrap();
    read(&mut model, 6, 6, 7).unwrap();
    model.write_ended(6, false, 0..1, 8);
    read(&mut model, 6, 9, 10).unwrap();
    read(&mut model, 5, 11, 12).unwrap();
    model.write_ended(5, false, 0..1, 13);
    read(&mut model, 5, 14, 15).unwrap();
    read(&mut model, 6, 16, 17).unwrap_err();
}

fn block(value: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    pattern(value, 0, &mut bytes);
    bytes
}

fn write(model: &mut DiskModel, request: u64, start: u64, end: u64) {
    model.write_started(request, request, 0..1, start);
    model.write_ended(request, false, 0..1, end);
}

#[test]
fn the_power_takes_only_what_was_not_flushed_and_that_comes_back() {
    let mut model = DiskModel::new(1, true);
    write(&mut model, 5, 1, 2);
    model.power_failed([&block(0)[..]].into_iter(), 3).unwrap();
    let mut lying = DiskModel::new(1, true);
    write(&mut lying, 5, 1, 2);
    lying.power_failed([&block(0)[..]].into_iter(), 3).unwrap();
    read(&mut lying, 0, 4, 5).unwrap_err();
    // A flush, before or after it has come back, makes it durable.
    model.flush_ended(4);
    model.mended();
    read(&mut model, 5, 5, 6).unwrap();
    model.power_failed([&block(0)[..]].into_iter(), 8).unwrap_err();
}

/// A write under way that was read; its client `keeps` it.
fn seen(keeps: bool) -> DiskModel {
    let mut model = DiskModel { keeps, ..DiskModel::new(1, true) };
    model.flush_ended(1);
    model.write_started(5, 5, 0..1, 2);
    read(&mut model, 5, 3, 4).unwrap();
    model
}

/// The power fails, and nothing of the write is left.
fn left(model: &mut DiskModel, tick: u64) -> Verdict {
    model.power_failed([&block(0)[..]].into_iter(), tick)
}

#[test]
fn the_power_may_take_what_was_read_if_nobody_keeps_it() {
    let seen = |keeps: bool| {
        let mut model = seen(keeps);
        read(&mut model, 0, 5, 6).unwrap_err();
        model
    };
    // Its client has given it up, and the drive is not the borrower's own.
    let mut model = seen(false);
    left(&mut model, 7).unwrap();
    model.write_abandoned(5, 0..1);
    read(&mut model, 0, 8, 9).unwrap();
    // Its client was told that it has failed, before or after.
    for tick in [7, 9] {
        let mut model = seen(true);
        left(&mut model, 8).unwrap();
        model.write_failed(5, 0..1, tick);
        read(&mut model, 0, 10, 11).unwrap();
    }
}

/// Zeroes are the same whoever has written them: those that were read may be of a write that nobody was told of.
#[test]
fn the_power_may_take_what_may_have_been_read() {
    let mut model = DiskModel { keeps: false, ..DiskModel::new(1, true) };
    model.flush_ended(1);
    // Zeroes, behind them 6, which a read shows, and zeroes again that are not answered.
    model.write_started(5, 0, 0..1, 2);
    model.write_started(6, 6, 0..1, 3);
    read(&mut model, 6, 4, 5).unwrap();
    model.write_ended(5, false, 0..1, 7);
    model.write_ended(6, false, 0..1, 8);
    model.write_started(7, 0, 0..1, 9);
    read(&mut model, 0, 6, 10).unwrap();
    model.power_failed([&block(6)[..]].into_iter(), 11).unwrap();
    model.write_abandoned(7, 0..1);
    read(&mut model, 6, 12, 13).unwrap();
}

#[test]
fn the_power_takes_nothing_that_was_read_and_is_kept_or_flushed() {
    let mut model = seen(true);
    model.write_abandoned(5, 0..1);
    left(&mut model, 7).unwrap();
    read(&mut model, 0, 8, 9).unwrap_err();
    let mut model = seen(false);
    model.write_abandoned(5, 0..1);
    model.asked_again(7);
    read(&mut model, 0, 8, 9).unwrap_err();
    let mut model = seen(false);
    model.flush_ended(7);
    left(&mut model, 8).unwrap_err();
    let mut model = seen(false);
    left(&mut model, 7).unwrap();
    model.write_ended(5, false, 0..1, 8);
    read(&mut model, 0, 9, 10).unwrap_err();
}

#[test]
fn what_a_medium_has_lost_comes_back_only_if_it_is_written_again() {
    let mut model = DiskModel::new(1, true);
    write(&mut model, 5, 1, 2);
    assert!(model.was_promised(0, 5, 3) && !model.was_promised(0, 5, 2));
    model.went_back(0, 0, 4);
    read(&mut model, 5, 3, 5).unwrap();
    let mut lying = DiskModel { blocks: model.blocks.clone(), reads: BTreeSet::new(), torn: None, ..model };
    read(&mut lying, 5, 6, 7).unwrap_err();
    model.asked_again(6);
    read(&mut model, 5, 7, 8).unwrap();
    read(&mut model, 0, 9, 10).unwrap_err();
}

#[test]
fn what_is_being_written_again_comes_before_or_after_a_loss() {
    let anew = || {
        let mut model = DiskModel::new(1, true);
        write(&mut model, 5, 1, 2);
        model.begins_anew(3);
        model
    };
    let mut model = anew();
    model.went_back(0, 0, 4);
    model.mended();
    read(&mut model, 5, 5, 6).unwrap();
    read(&mut model, 0, 7, 8).unwrap_err();
    let mut model = anew();
    model.went_back(0, 0, 4);
    model.mended();
    read(&mut model, 0, 5, 6).unwrap();
    read(&mut model, 5, 7, 8).unwrap_err();
    // It has been written again before that.
    let mut model = anew();
    model.mended();
    model.went_back(0, 0, 4);
    read(&mut model, 5, 5, 6).unwrap_err();
}

#[test]
fn nobody_who_is_gone_writes_anything_again() {
    let leave: [fn(&mut DiskModel); 2] =
        [|model| assert!(!model.borrower_lost(100, 4)), DiskModel::given_back];
    for leave in leave {
        let mut model = DiskModel::new(1, true);
        write(&mut model, 5, 1, 2);
        model.begins_anew(3);
        leave(&mut model);
        model.went_back(0, 0, 5);
        read(&mut model, 5, 6, 7).unwrap_err();
    }
}

#[test]
fn what_nobody_waits_for_may_happen_behind_a_loss_and_is_not_forgotten_then() {
    let mut model = DiskModel::new(1, true);
    (0..8).for_each(|n| write(&mut model, 10 + n, 1 + 2 * n, 2 + 2 * n));
    model.write_started(5, 5, 0..1, 20);
    model.write_abandoned(5, 0..1);
    model.abandoned_ended(5, 0..1, 21);
    model.went_back(0, 16, 22);
    model.flush_ended(23);
    read(&mut model, 5, 24, 25).unwrap();
    read(&mut model, 5, 26, 27).unwrap();
    // Neither what a read has shown to be gone, nor what was answered.
    read(&mut model, 16, 28, 29).unwrap_err();
    read(&mut model, 17, 28, 29).unwrap_err();
}

#[test]
fn of_an_image_that_was_replaced_nothing_comes_back_and_who_reads_the_new_one_was_told() {
    let mut model = DiskModel::new(1, true);
    write(&mut model, 5, 1, 2);
    model.write_started(6, 6, 0..1, 3);
    model.replaced(vec![9], Some(9), 4);
    read(&mut model, 5, 3, 5).unwrap();
    read(&mut model, 9, 3, 5).unwrap_err();
    read(&mut model, 9, 6, 7).unwrap_err();
    assert!(!model.borrower_lost(100, 8));
    read(&mut model, 9, 9, 10).unwrap();
    read(&mut model, 6, 11, 12).unwrap_err();
    read(&mut model, 5, 13, 14).unwrap_err();
    // Whoever has been answered nothing yet, or nothing since it was told, is told nothing.
    model.borrower_lost(100, 15);
    model.replaced(vec![7], Some(7), 16);
    read(&mut model, 7, 15, 17).unwrap();
    model.replaced(vec![8], Some(8), 18);
    read(&mut model, 8, 19, 20).unwrap_err();
    // Twice before it could be told.
    model.replaced(vec![9], Some(9), 21);
    model.replaced(vec![10], Some(10), 22);
    read(&mut model, 10, 23, 24).unwrap_err();
}

#[test]
fn what_is_kept_comes_back_over_a_write_that_has_failed() {
    let mut model = DiskModel::new(1, true);
    write(&mut model, 5, 1, 2);
    model.write_started(6, 6, 0..1, 3);
    model.write_failed(6, 0..1, 4);
    read(&mut model, 6, 5, 6).unwrap();
    read(&mut model, 5, 7, 8).unwrap_err();
    model.asked_again(9);
    read(&mut model, 5, 10, 11).unwrap();
    read(&mut model, 6, 12, 13).unwrap_err();
}

#[test]
fn what_a_borrower_kept_goes_with_it() {
    let mut model = DiskModel::new(1, true);
    write(&mut model, 5, 1, 2);
    assert!(!model.borrower_lost(100, 3));
    read(&mut model, 5, 4, 5).unwrap();
    model.power_failed([&block(0)[..]].into_iter(), 6).unwrap();
    model.mended();
    read(&mut model, 5, 7, 8).unwrap_err();
    let mut model = DiskModel::new(1, true);
    write(&mut model, 5, 1, 2);
    model.power_failed([&block(0)[..]].into_iter(), 3).unwrap();
    assert!(model.borrower_lost(100, 4));
    let mut other = DiskModel { blocks: model.blocks.clone(), reads: BTreeSet::new(), torn: None, ..model };
    model.abandoned_ended(100, 0..1, 5);
    read(&mut model, 0, 6, 7).unwrap();
    read(&mut model, 5, 8, 9).unwrap_err();
    other.abandoned_ended(100, 0..1, 5);
    read(&mut other, 5, 6, 7).unwrap();
    read(&mut other, 0, 8, 9).unwrap_err();
}

#[test]
fn only_concurrent_unflushed_writes_settle_anew() {
    let overlapping = |model: &mut DiskModel| {
        model.write_started(5, 5, 0..1, 1);
        model.write_started(6, 6, 0..1, 2);
        model.write_ended(5, false, 0..1, 3);
        model.write_ended(6, false, 0..1, 4);
        read(model, 5, 5, 6).unwrap();
    };
    let mut model = DiskModel::new(1, true);
    overlapping(&mut model);
    read(&mut model, 6, 7, 8).unwrap_err();
    let mut model = DiskModel::new(1, true);
    overlapping(&mut model);
    model.asked_again(7);
    read(&mut model, 6, 8, 9).unwrap();
    read(&mut model, 5, 10, 11).unwrap_err();
    let mut model = DiskModel::new(1, true);
    overlapping(&mut model);
    model.flush_ended(7);
    model.asked_again(8);
    read(&mut model, 6, 9, 10).unwrap_err();
}
