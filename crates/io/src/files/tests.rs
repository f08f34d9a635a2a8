//! Real files: on the disk that holds the build, on tmpfs where there is one, and in memory.

use super::*;
use std::time::Instant;

/// A folder of the test's own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn on(parent: &Path) -> Self {
        let name = format!("causeway-io-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = parent.join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn disk() -> Self {
        Self::on(std::env::current_exe().unwrap().parent().unwrap())
    }

    fn file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.0.join(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[repr(align(4096))]
struct Aligned([u8; 16 << 10]);

/// A child that another test has forked may keep a lock for a moment.
const PATIENCE: Duration = Duration::from_secs(5);

fn open(path: &Path) -> Result<Image, OpenError> {
    Image::open(path, &ImageOptions { lock_patience: PATIENCE, ..ImageOptions::default() })
}

fn refusal(path: &Path, options: &ImageOptions) -> OpenRefusal {
    let error = Image::open(path, options).unwrap_err();
    assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
    error.reason
}

fn every_operation_works(image: &Image) {
    let mut data = Box::new(Aligned([0; 16 << 10]));
    data.0.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 512) as u8 + 1);
    let (one, two) = data.0.split_at(4096);
    image.write_at(&mut [IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(two)], 8192).unwrap();
    image.sync_data().unwrap();
    let read = |offset| {
        let mut buffer = Box::new(Aligned([0xff; 16 << 10]));
        let (one, two) = buffer.0.split_at_mut(8192);
        image.read_at(&mut [IoSliceMut::new(one), IoSliceMut::new(two)], offset).unwrap();
        buffer
    };
    assert!(read(8192).0 == data.0);
    image.zero(8192 + 512, 1024, false).unwrap();
    image.zero(8192 + 4096, 4096, true).unwrap();
    let mut expected = data;
    expected.0[512..1536].fill(0);
    expected.0[4096..8192].fill(0);
    assert!(read(8192).0 == expected.0);
    image.trim(8192, 4096).unwrap();
    image.trim(8192, 0).unwrap();
    image.zero(0, 0, true).unwrap();
    assert!(read(8192).0[4096..] == expected.0[4096..]);
    assert_eq!(rustix::fs::fstat(image).unwrap().st_size as u64, image.info().bytes);
    let past = image.read_at(&mut [IoSliceMut::new(&mut [0; 512])], image.info().bytes + (64 << 10));
    assert!(matches!(past.unwrap_err().raw_os_error(), Some(libc::EIO | libc::EINVAL)));
}

#[test]
fn image_on_a_disk() {
    let scratch = Scratch::disk();
    let image = open(&scratch.file("image", 1 << 20)).unwrap();
    let info = *image.info();
    println!("{info:?}");
    assert_eq!((info.kind, info.bytes, info.read_only), (ImageKind::File, 1 << 20, false));
    if info.direct {
        assert!(info.offset_alignment <= 512 && info.memory_alignment.is_power_of_two());
        let copy = Image::from_fd(image.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(*copy.info(), info);
    }
    every_operation_works(&image);
    drop(image);
    let options = ImageOptions { direct: false, lock_patience: PATIENCE, ..ImageOptions::default() };
    let image = Image::open(&scratch.0.join("image"), &options).unwrap();
    assert!(!image.info().direct && image.info().offset_alignment == 1);
    every_operation_works(&image);
}

#[test]
fn direct_units_must_suit_the_image() {
    let scratch = Scratch::disk();
    let path = scratch.file("image", 1 << 20);
    let options = ImageOptions { unit_bytes: 1, ..ImageOptions::default() };
    assert!(!Image::open(&path, &options).unwrap().info().direct);
}

#[test]
fn image_in_memory() {
    let image = Image::ram(1 << 20).unwrap();
    assert!(image.info().memory_backed && !image.info().direct);
    every_operation_works(&image);
    assert!(Image::ram(0).is_err() && Image::ram(513).is_err() && Image::ram(u64::MAX).is_err());
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        let scratch = Scratch::on(shm);
        let image = open(&scratch.file("image", 1 << 20)).unwrap();
        assert!(image.info().memory_backed && !image.info().direct);
        every_operation_works(&image);
    }
}

#[test]
fn many_pieces_are_one_operation() {
    let image = Image::ram(4 << 20).unwrap();
    let data: Vec<u8> = (0..3000u32 * 512).map(|at| (at / 512 + at) as u8).collect();
    let mut pieces: Vec<_> = data.chunks(512).map(IoSlice::new).collect();
    image.write_at(&mut pieces, 512).unwrap();
    let mut read = vec![0; data.len()];
    let mut pieces: Vec<_> = read.chunks_mut(512).map(IoSliceMut::new).collect();
    image.read_at(&mut pieces, 512).unwrap();
    assert!(read == data);
}

#[test]
fn refusals_have_names() {
    let scratch = Scratch::disk();
    let options = ImageOptions { least_bytes: 4096, ..ImageOptions::default() };
    let read_only = ImageOptions { read_only: true, ..options };
    for options in [options, read_only] {
        assert!(matches!(refusal(&scratch.0.join("none"), &options), OpenRefusal::Missing));
        assert!(matches!(refusal(&scratch.0, &options), OpenRefusal::Directory));
        assert!(matches!(refusal(Path::new("/dev/null"), &options), OpenRefusal::NotAnImage));
        let small = scratch.file("small", 512);
        let expected = OpenRefusal::TooSmall { bytes: 512, least_bytes: 4096 };
        assert_eq!(format!("{:?}", refusal(&small, &options)), format!("{expected:?}"));
        let odd = scratch.file("odd", 4097);
        assert!(matches!(refusal(&odd, &options), OpenRefusal::NotBlocks { bytes: 4097 }));
        assert!(open(&odd).unwrap_err().to_string().contains("truncate -s 4608"));
        let fifo = scratch.0.join("fifo");
        let _ = rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR, 0);
        assert!(matches!(refusal(&fifo, &options), OpenRefusal::NotAnImage | OpenRefusal::Unreadable(_)));
    }
}

#[test]
fn unreadable_and_unwritable_files_are_told_apart() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::disk();
    let path = scratch.file("secret", 4096);
    let restrict = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    let reasons = std::thread::scope(|scope| {
        let look = || {
            // The kernel lets root open anything; this thread alone acts as somebody else.
            // SAFETY: changes the identity of this thread only, which ends with the closure.
            unsafe { libc::syscall(libc::SYS_setfsuid, 65_534) };
            restrict_checked(&path)
        };
        restrict(0o000);
        let unreadable = scope.spawn(look).join().unwrap();
        restrict(0o444);
        (unreadable, scope.spawn(look).join().unwrap())
    });
    if let (Some(first), Some(second)) = reasons {
        assert!(matches!(first, OpenRefusal::Unreadable(_)), "{first:?}");
        assert!(matches!(second, OpenRefusal::NotWritable(_)), "{second:?}");
    } else {
        println!("the folders above {path:?} are not open to others: nothing shown");
    }
}

/// The refusal, or nothing where even the folder is out of reach for another user.
fn restrict_checked(path: &Path) -> Option<OpenRefusal> {
    std::fs::metadata(path).ok()?;
    Some(refusal(path, &ImageOptions::default()))
}

#[test]
fn a_lent_image_is_locked() {
    let scratch = Scratch::disk();
    let path = scratch.file("image", 1 << 20);
    let read_only = ImageOptions { read_only: true, ..ImageOptions::default() };
    let writer = open(&path).unwrap();
    assert!(matches!(refusal(&path, &ImageOptions::default()), OpenRefusal::Locked(_)));
    assert!(open(&path).unwrap_err().to_string().contains("already lent (locked)"));
    assert!(matches!(refusal(&path, &read_only), OpenRefusal::Locked(_)));
    // An inherited copy keeps the lock.
    let copy = writer.as_fd().try_clone_to_owned().unwrap();
    drop(writer);
    assert!(matches!(refusal(&path, &read_only), OpenRefusal::Locked(_)));
    drop(copy);
    // A child that another test has just forked may hold the lock until it becomes another program.
    let patience = Instant::now() + Duration::from_secs(30);
    let one = loop {
        match Image::open(&path, &read_only) {
            Err(_) if Instant::now() < patience => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    let two = Image::open(&path, &read_only).unwrap();
    assert!(one.info().read_only && two.write_at(&mut [IoSlice::new(&[0; 512])], 0).is_err());
    assert!(matches!(refusal(&path, &ImageOptions::default()), OpenRefusal::Locked(_)));
}

/// A process that does nothing but hold the lock of an image.
fn other_holder(path: &Path) -> std::process::Child {
    let locked = open(path).unwrap().as_fd().try_clone_to_owned().unwrap();
    std::process::Command::new("sleep").arg("600").stdin(locked).spawn().unwrap()
}

fn patient(patience: Duration) -> ImageOptions {
    ImageOptions { lock_patience: patience, ..ImageOptions::default() }
}

#[test]
fn the_next_agent_waits_for_the_lock_and_knows_whose_it_is() {
    let scratch = Scratch::disk();
    let path = scratch.file("image", 1 << 20);
    let mut holder = other_holder(&path);
    let patience = Duration::from_millis(300);
    let start = Instant::now();
    let OpenRefusal::Locked(by) = refusal(&path, &patient(patience)) else { panic!("not locked") };
    assert!(start.elapsed() >= patience);
    if let Some(by) = by {
        assert_eq!((by.pid, by.command.as_str()), (holder.id(), "sleep"));
        let error = OpenError { path: path.clone(), reason: OpenRefusal::Locked(Some(by)) };
        assert!(error.to_string().contains(&format!("sleep (process {})", holder.id())), "{error}");
    } else {
        println!("the device numbers of this file system are not those of its locks: nothing shown");
    }
    std::thread::scope(|scope| {
        let next = scope.spawn(move || Image::open(&path, &patient(Duration::from_secs(60))).is_ok());
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert!(next.join().unwrap());
    });
}

#[test]
fn nobody_waits_for_oneself() {
    let scratch = Scratch::disk();
    let path = scratch.file("image", 1 << 20);
    let _image = open(&path).unwrap();
    let start = Instant::now();
    let reason = refusal(&path, &patient(Duration::from_secs(60)));
    assert!(start.elapsed() < Duration::from_secs(30));
    let error = OpenError { path, reason };
    assert!(error.to_string().contains("already lent (locked) by this very node"), "{error}");
}

#[test]
fn a_signal_ends_the_wait_for_the_lock() {
    let scratch = Scratch::disk();
    let path = scratch.file("image", 1 << 20);
    let mut holder = other_holder(&path);
    let (tell, told) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || {
        // SAFETY: asks for the own thread's handle and number.
        tell.send(unsafe { (libc::pthread_self(), libc::gettid()) }).unwrap();
        refusal(&path, &patient(Duration::from_secs(60)))
    });
    let (thread, number) = told.recv().unwrap();
    let blocks_sigterm = || {
        let status = std::fs::read_to_string(format!("/proc/self/task/{number}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() & 1 << (libc::SIGTERM - 1) != 0
    };
    while !blocks_sigterm() {
        std::thread::yield_now();
    }
    // SAFETY: the thread was not joined, and takes the signal itself because it waits for it.
    unsafe { libc::pthread_kill(thread, libc::SIGTERM) };
    assert!(matches!(waiting.join().unwrap(), OpenRefusal::Interrupted));
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn a_full_disk_is_an_error_with_its_number() {
    let Ok(full) = rustix::fs::open("/dev/full", OFlags::RDWR, Mode::empty()) else { return };
    let info = *Image::ram(4096).unwrap().info();
    let image = Image { file: full.into(), info, mapped: None, path: None };
    let error = image.write_at(&mut [IoSlice::new(&[1; 512])], 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
}

#[test]
fn zeroes_keep_their_space_unless_it_may_be_given_back() {
    let scratch = Scratch::disk();
    for image in [Image::ram(1 << 20).unwrap(), open(&scratch.file("image", 1 << 20)).unwrap()] {
        let kept = || rustix::fs::fstat(&image).unwrap().st_blocks * 512;
        image.zero(0, 1 << 20, true).unwrap();
        assert_eq!(kept(), 0, "{:?}", image.info());
        image.zero(0, 64 << 10, false).unwrap();
        assert_eq!(kept(), 64 << 10, "{:?}", image.info());
        image.zero(4096, 4096, true).unwrap();
        assert_eq!(kept(), 60 << 10, "{:?}", image.info());
    }
}

/// Needs a block device nobody uses, of at least 64 KiB, whose contents may be lost:
/// `CAUSEWAY_TEST_BLOCK_DEVICE=/dev/loop0 cargo test -p causeway-io -- --ignored block_device`
#[test]
#[ignore = "needs a block device"]
fn image_on_a_block_device() {
    let path = std::env::var_os("CAUSEWAY_TEST_BLOCK_DEVICE").map(PathBuf::from).unwrap();
    let image = open(&path).unwrap();
    println!("{:?}", image.info());
    assert_eq!((image.info().kind, image.info().direct), (ImageKind::BlockDevice, true));
    assert!(image.info().bytes >= 64 << 10);
    assert!(matches!(refusal(&path, &ImageOptions::default()), OpenRefusal::Locked(_)));
    let mut data = Box::new(Aligned([7; 16 << 10]));
    image.write_at(&mut [IoSlice::new(&data.0)], 4096).unwrap();
    image.sync_data().unwrap();
    image.zero(4096, 4096, false).unwrap();
    println!("trimmed: {}", image.trim(8192, 4096).unwrap());
    image.read_at(&mut [IoSliceMut::new(&mut data.0)], 4096).unwrap();
    assert!(data.0[..4096] == [0; 4096] && data.0[8192..] == [7; 8192]);
}

/// What each way to put something else in an image's place leaves to see.
#[test]
fn another_image_in_the_place_of_one_is_told_from_it() {
    let scratch = Scratch::disk();
    let path = scratch.file("image", 1 << 20);
    let image = open(&path).unwrap();
    let given = image.give_mark([7; MARK_BYTES]);
    let before = image.identify().unwrap();
    let (mark, has_times) = match before {
        Identity::File { mark, birth, .. } => (mark, birth.is_some()),
        Identity::Device { .. } => panic!("it is a file"),
    };
    println!("{before:?}");
    assert_eq!(given.unwrap_or(mark), mark);
    assert!(!image.look().unwrap().displaced);
    // Opened again, written, renamed: it is what it was.
    let data = Box::new(Aligned([1; 16 << 10]));
    image.write_at(&mut [IoSlice::new(&data.0)], 0).unwrap();
    drop(image);
    let moved = path.with_extension("moved");
    std::fs::rename(&path, &moved).unwrap();
    let image = open(&moved).unwrap();
    let now = image.identify().unwrap();
    assert_eq!(now.difference(&before, true), None);
    assert!(!has_times || now.written() > before.written());
    // A copy in its place, also one with all attributes.
    let copy = scratch.0.join("copy");
    let copied = std::process::Command::new("cp").arg("-a").args([&moved, &copy]).status().unwrap();
    assert!(copied.success());
    std::fs::rename(&copy, &moved).unwrap();
    let look = image.look().unwrap();
    assert!(look.displaced && look.removed);
    let is_kept = mark != Mark::Impossible || has_times;
    let other = open(&moved).unwrap().identify().unwrap();
    assert_eq!(other.difference(&before, true).is_some(), is_kept);
    drop(image);
    std::fs::remove_file(&moved).unwrap();
    let anew = open(&scratch.file("image.moved", 1 << 20)).unwrap().identify().unwrap();
    assert_eq!(anew.difference(&before, false).is_some(), is_kept);
    let cut = open(&scratch.file("cut", 1 << 19)).unwrap().identify().unwrap();
    assert!(cut.difference(&before, false).is_some());
    assert_eq!(Image::ram(1 << 20).unwrap().identify().unwrap().difference(&before, true).is_some(), is_kept);
}
