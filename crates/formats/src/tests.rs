//! Images as other tools make them, and as attackers do.

use super::*;
use block::conformance::{self, Sequence};
use block::{CopyOptions, Durability, ErrorKind, ExtentKind, Memory, Span, ZeroMode};
use proptest::prelude::*;
use std::process::Command;
use std::sync::LazyLock;
use tempfile::TempDir;

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

async fn open_as(path: &Path, read_only: bool) -> Result<Arc<dyn Device>> {
    let scratch = path.parent().unwrap().to_owned();
    open(path, OpenOptions { format: None, read_only, scratch }).await
}

async fn refused(path: &Path) -> Error {
    let error = open_as(path, true).await.err().expect("the image was opened");
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(error.message().contains(name), "the file is not named: {error}");
    error
}

/// Runs qemu-img in `dir`; false (and a message) when it is not installed.
fn qemu_img(dir: &TempDir, args: &[&str]) -> bool {
    match Command::new("qemu-img").args(args).current_dir(dir.path()).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "qemu-img {args:?}: {text}");
            true
        }
        Err(_) => {
            eprintln!("skipped: qemu-img is not installed");
            false
        }
    }
}

/// A disk with data that compresses, data that does not, zeroes and holes.
fn sample(size: usize) -> Vec<u8> {
    let mut random = Sequence::new(11);
    let mut disk = vec![0; size];
    for piece in disk.chunks_mut(48 << 10) {
        match random.below(4) {
            0 => piece.fill(random.number() as u8),
            1 => piece.iter_mut().for_each(|byte| *byte = random.number() as u8),
            2 => piece[piece.len() / 3] = 1,
            _ => {}
        }
    }
    disk
}

const SAMPLE: usize = (3 << 20) + 512;

/// A directory with the sample in `disk.raw`.
fn with_sample() -> (TempDir, Vec<u8>) {
    let dir = directory();
    let disk = sample(SAMPLE);
    std::fs::write(dir.path().join("disk.raw"), &disk).unwrap();
    (dir, disk)
}

async fn contents(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read(Span::whole(device.size()), &mut bytes).await.unwrap();
    bytes
}

/// An image as others see it by default.
async fn create(path: &Path, format: Format, size: u64) -> Result<Arc<dyn Device>> {
    super::create(path, format, size, 0o666).await
}

async fn fresh(format: Format, size: u64) -> Arc<dyn Device> {
    let dir = directory();
    // The file lives on without its name.
    create(&dir.path().join("disk"), format, size).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raw_image_keeps_the_device_contract() {
    conformance::check(|size| fresh(Format::Raw, size)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_qcow2_image_keeps_the_device_contract() {
    conformance::check(|size| fresh(Format::Qcow2, size)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn qcow2_images_of_other_shapes_keep_the_device_contract() {
    for shape in ["compat=0.10", "cluster_size=512", "cluster_size=2M", "refcount_bits=1"] {
        let dir = directory();
        let size = conformance::SIZE.to_string();
        if !qemu_img(&dir, &["create", "-q", "-f", "qcow2", "-o", shape, "disk", &size]) {
            return;
        }
        let device = open_as(&dir.path().join("disk"), false).await.unwrap();
        conformance::against_bytes(&*device, vec![0; conformance::SIZE as usize], 5).await;
        device.flush().await.unwrap();
        drop(device);
        assert!(qemu_img(&dir, &["check", "-q", "-f", "qcow2", "disk"]));
    }
}

#[tokio::test]
async fn images_made_by_qemu_read_as_qemu_reads_them() {
    let (dir, _) = with_sample();
    for (format, args) in [
        (Format::Qcow2, &["qcow2"][..]),
        (Format::Qcow2, &["qcow2", "-o", "compat=0.10"]),
        (Format::Qcow2, &["qcow2", "-c"]),
        (Format::Qcow2, &["qcow2", "-c", "-o", "cluster_size=4k"]),
        (Format::Qcow2, &["qcow2", "-c", "-o", "compression_type=zstd"]),
        (Format::Qcow2, &["qcow2", "-o", "extended_l2=on,cluster_size=128k"]),
        (Format::Qcow2, &["qcow2", "-o", "preallocation=metadata"]),
        (Format::Vmdk, &["vmdk"]),
        (Format::Vmdk, &["vmdk", "-o", "subformat=streamOptimized"]),
        (Format::Vmdk, &["vmdk", "-o", "subformat=monolithicFlat"]),
        (Format::Vmdk, &["vmdk", "-o", "subformat=twoGbMaxExtentFlat"]),
        (Format::Vhd, &["vpc", "-o", "subformat=dynamic,force_size=on"]),
        (Format::Vhd, &["vpc", "-o", "subformat=fixed,force_size=on"]),
        (Format::Vhdx, &["vhdx"]),
        (Format::Vdi, &["vdi"]),
    ] {
        let convert = [&["convert", "-f", "raw", "disk.raw", "disk.image", "-O"], args].concat();
        if !qemu_img(&dir, &convert) {
            return;
        }
        let back = ["convert", "-f", args[0], "disk.image", "-O", "raw", "back.raw"];
        assert!(qemu_img(&dir, &back));
        let expected = std::fs::read(dir.path().join("back.raw")).unwrap();
        let path = dir.path().join("disk.image");
        assert_eq!(probe(&path).unwrap(), format, "{args:?}");
        let device = open_as(&path, true).await.unwrap_or_else(|e| panic!("{args:?}: {e:?}"));
        conformance::check_read_only(&*device, &expected).await;
        drop(device);
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let name = entry.unwrap().file_name();
            assert!(!name.to_string_lossy().contains("convert"), "{name:?} is left");
        }
    }
}

#[tokio::test]
async fn a_copy_into_a_new_qcow2_image_satisfies_qemu() {
    let (dir, disk) = with_sample();
    let source = open_as(&dir.path().join("disk.raw"), true).await.unwrap();
    let path = dir.path().join("disk.qcow2");
    let target = create(&path, Format::Qcow2, source.size()).await.unwrap();
    let options = CopyOptions { depth: 4, fresh: true };
    let written = block::copy(&*source, &*target, options, &|_| {}).await.unwrap();
    assert!(written < disk.len() as u64);
    assert_eq!(contents(&*target).await, disk);
    drop(target);
    if qemu_img(&dir, &["check", "-q", "-f", "qcow2", "disk.qcow2"]) {
        let compare = ["compare", "-q", "-f", "raw", "-F", "qcow2", "disk.raw", "disk.qcow2"];
        assert!(qemu_img(&dir, &compare));
    }
}

#[tokio::test]
async fn holes_of_a_qcow2_image_are_seen() {
    let device = fresh(Format::Qcow2, 64 << 20).await;
    let data = vec![1; 65536];
    device
        .write(Span::between(1 << 20, (1 << 20) + 65536), &data, Durability::Buffered)
        .await
        .unwrap();
    let list = device.extents(Span::whole(device.size()), 16).await.unwrap();
    let kinds: Vec<_> = list.iter().map(|e| (e.span.offset(), e.kind)).collect();
    let behind = (1 << 20) + 65536;
    assert_eq!(
        kinds,
        [(0, ExtentKind::Hole), (1 << 20, ExtentKind::Data), (behind, ExtentKind::Hole)]
    );
}

#[tokio::test]
async fn zeroed_room_of_a_qcow2_image_is_used_again() {
    let dir = directory();
    let path = dir.path().join("disk");
    let device = create(&path, Format::Qcow2, 64 << 20).await.unwrap();
    let whole = Span::whole(8 << 20);
    let data = vec![7; 8 << 20];
    let mode = ZeroMode { may_punch: true, only_if_fast: true };
    for _ in 0..4 {
        device.write(whole, &data, Durability::Buffered).await.unwrap();
        device.zero(whole, mode, Durability::Buffered).await.unwrap();
        device.flush().await.unwrap();
    }
    let used = std::fs::metadata(&path).unwrap().len();
    assert!(used < 20 << 20, "{used} bytes");
}

#[tokio::test]
async fn a_raw_image_of_any_size_has_exactly_its_size() {
    let dir = directory();
    let path = dir.path().join("odd");
    std::fs::write(&path, [5; 1000]).unwrap();
    let device = open_as(&path, true).await.unwrap();
    conformance::check_read_only(&*device, &[5; 1000]).await;
}

#[tokio::test]
async fn what_is_no_image_is_refused_by_name() {
    let dir = directory();
    assert_eq!(refused(&dir.path().join("missing")).await.kind(), ErrorKind::NotFound);
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    assert_eq!(refused(&dir.path().join("folder")).await.kind(), ErrorKind::Invalid);
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_eq!(refused(&pipe).await.kind(), ErrorKind::Invalid);
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(refused(&socket).await.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_second_writer_is_refused() {
    for format in [Format::Raw, Format::Qcow2] {
        let dir = directory();
        let path = dir.path().join("disk");
        let first = create(&path, format, 1 << 20).await.unwrap();
        first.flush().await.unwrap();
        for read_only in [false, true] {
            let error = open_as(&path, read_only).await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        }
        assert_eq!(create(&path, format, 1 << 20).await.err().unwrap().kind(), ErrorKind::Conflict);
        drop(first);
        let _one = open_as(&path, true).await.unwrap();
        let _two = open_as(&path, true).await.unwrap();
    }
}

#[tokio::test]
async fn a_leftover_is_removed_and_a_file_that_is_written_is_not() {
    let dir = directory();
    let path = dir.path().join("disk");
    remove_leftover(&path).unwrap();
    std::fs::write(&path, b"of one that was killed").unwrap();
    remove_leftover(&path).unwrap();
    assert!(!path.exists());
    for format in [Format::Raw, Format::Qcow2] {
        let written = create(&path, format, 1 << 20).await.unwrap();
        assert_eq!(remove_leftover(&path).unwrap_err().kind(), ErrorKind::Conflict, "{format}");
        assert!(path.exists());
        drop(written);
        remove_leftover(&path).unwrap();
    }
    std::os::unix::fs::symlink("elsewhere", &path).unwrap();
    assert_eq!(remove_leftover(&path).unwrap_err().kind(), ErrorKind::Conflict);
}

#[tokio::test]
async fn an_image_is_created_with_the_permissions_that_are_asked_for() {
    use std::os::unix::fs::PermissionsExt;
    for format in [Format::Raw, Format::Qcow2] {
        let dir = directory();
        let path = dir.path().join("disk");
        super::create(&path, format, 1 << 20, 0o600).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[tokio::test]
async fn formats_that_are_only_read_are_not_opened_for_writing_nor_created() {
    let dir = directory();
    let path = dir.path().join("disk");
    std::fs::write(&path, b"vhdxfile").unwrap();
    assert_eq!(open_as(&path, false).await.err().unwrap().kind(), ErrorKind::Denied);
    let other = dir.path().join("other");
    let error = create(&other, Format::Vdi, 512).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = create(&other, Format::Raw, 1000).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(!other.exists());
}

/// A qcow2 image of the sample, as qemu makes it.
fn qcow2_sample(options: &[&str]) -> Option<(TempDir, PathBuf, Vec<u8>)> {
    let (dir, disk) = with_sample();
    let args = ["convert", "-f", "raw", "disk.raw", "disk.qcow2", "-O", "qcow2"];
    if !qemu_img(&dir, &[&args[..], options].concat()) {
        return None;
    }
    let path = dir.path().join("disk.qcow2");
    Some((dir, path, disk))
}

fn patch(path: &Path, offset: usize, bytes: &[u8]) {
    let mut image = std::fs::read(path).unwrap();
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
    std::fs::write(path, image).unwrap();
}

#[tokio::test]
async fn a_qcow2_image_with_an_absurd_header_is_refused_with_a_remedy() {
    for (offset, bytes, kind, text) in [
        (4, &4u32.to_be_bytes()[..], ErrorKind::Unsupported, "version 4"),
        (8, &104u64.to_be_bytes(), ErrorKind::Denied, "backing file"),
        (20, &63u32.to_be_bytes(), ErrorKind::Corrupt, "clusters"),
        (20, &0u32.to_be_bytes(), ErrorKind::Corrupt, "clusters"),
        (24, &u64::MAX.to_be_bytes(), ErrorKind::Corrupt, "bytes"),
        (24, &(1u64 << 62).to_be_bytes(), ErrorKind::Corrupt, "too short"),
        (32, &2u32.to_be_bytes(), ErrorKind::Unsupported, "encrypted"),
        (36, &u32::MAX.to_be_bytes(), ErrorKind::Corrupt, "entries"),
        (36, &(4u32 << 20).to_be_bytes(), ErrorKind::Corrupt, "truncated"),
        (40, &(u64::MAX << 16).to_be_bytes(), ErrorKind::Corrupt, "truncated"),
        (72, &(1u64 << 0).to_be_bytes(), ErrorKind::Unsupported, "closed cleanly"),
        (72, &(1u64 << 1).to_be_bytes(), ErrorKind::Corrupt, "marked as corrupt"),
        (72, &(1u64 << 2).to_be_bytes(), ErrorKind::Denied, "external data file"),
        (72, &(1u64 << 40).to_be_bytes(), ErrorKind::Unsupported, "0x10000000000"),
    ] {
        let Some((_dir, path, _)) = qcow2_sample(&[]) else { return };
        patch(&path, offset, bytes);
        let error = refused(&path).await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(text), "{error}");
    }
}

#[tokio::test]
async fn a_backing_file_is_never_opened() {
    let (dir, _) = with_sample();
    let args = ["create", "-q", "-f", "qcow2", "-b", "disk.raw", "-F", "raw", "over.qcow2"];
    if !qemu_img(&dir, &args) {
        return;
    }
    let error = refused(&dir.path().join("over.qcow2")).await;
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.message().contains("flatten it with qemu-img convert"), "{error}");
}

#[tokio::test]
async fn a_truncated_qcow2_image_is_refused_wherever_it_is_cut() {
    for options in [&[][..], &["-c"]] {
        let Some((_dir, path, _)) = qcow2_sample(options) else { return };
        let image = std::fs::read(&path).unwrap();
        for cut in (0..image.len()).step_by(30_011) {
            std::fs::write(&path, &image[..cut]).unwrap();
            let opened = match probe(&path).unwrap() {
                Format::Qcow2 => open_as(&path, true).await,
                _ => continue, // nothing of it is left
            };
            match opened {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
                // The last cluster may end where its data does.
                Ok(_) => assert!(image.len() - cut < 65536, "cut at {cut} of {}", image.len()),
            }
        }
    }
}

#[tokio::test]
async fn a_qcow2_image_whose_ranges_share_a_table_is_refused() {
    let dir = directory();
    let path = dir.path().join("disk");
    let device = create(&path, Format::Qcow2, 2 << 30).await.unwrap();
    device.write(Span::between(0, 512), &[1; 512], Durability::Buffered).await.unwrap();
    device.flush().await.unwrap();
    drop(device);
    let image = std::fs::read(&path).unwrap();
    let l1 = u64::from_be_bytes(image[40..48].try_into().unwrap()) as usize;
    let entry = image[l1..l1 + 8].to_vec();
    patch(&path, l1 + 8, &entry);
    let error = refused(&path).await;
    assert!(error.message().contains("share one L2 table"), "{error}");
}

#[tokio::test]
async fn a_qcow2_image_with_wrong_reference_counts_is_read_but_not_written() {
    let block = |image: &[u8]| {
        let table = u64::from_be_bytes(image[48..56].try_into().unwrap()) as usize;
        (table, u64::from_be_bytes(image[table..table + 8].try_into().unwrap()) as usize)
    };
    for (what, text) in [("count", "not counted"), ("gap", "is missing"), ("overlap", "overlaps")] {
        let Some((_dir, path, _)) = qcow2_sample(&[]) else { return };
        let image = std::fs::read(&path).unwrap();
        let (table, counts) = block(&image);
        match what {
            "count" => patch(&path, counts + 2 * 4, &[0, 0]),
            "gap" => patch(&path, table, &[0; 8]),
            _ => {
                // The first data cluster is said to be where the header is.
                let l1 = u64::from_be_bytes(image[40..48].try_into().unwrap()) as usize;
                let entry = u64::from_be_bytes(image[l1..l1 + 8].try_into().unwrap());
                let l2 = (entry & 0x00ff_ffff_ffff_fe00) as usize;
                patch(&path, l2, &(table as u64 | 1 << 63).to_be_bytes());
            }
        }
        let error = open_as(&path, false).await.err().expect(what);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(text), "{error}");
        assert!(open_as(&path, true).await.is_ok(), "{what}");
    }
}

#[tokio::test]
async fn a_vmdk_descriptor_cannot_name_other_files() {
    let dir = directory();
    std::fs::write(dir.path().join("secret.raw"), vec![9; 1 << 20]).unwrap();
    std::os::unix::fs::symlink("secret.raw", dir.path().join("disk-flat.vmdk")).unwrap();
    let path = dir.path().join("disk.vmdk");
    for extent in ["secret.raw", "/etc/passwd", "../x/secret.raw", "disk-flat.vmdk"] {
        let text = format!(
            "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\n\
             createType=\"monolithicFlat\"\nRW 8 FLAT \"{extent}\" 0\n"
        );
        std::fs::write(&path, text).unwrap();
        assert_eq!(refused(&path).await.kind(), ErrorKind::Denied, "{extent}");
    }
}

#[tokio::test]
async fn a_vmdk_extent_that_is_too_short_is_an_error_and_not_zeroes() {
    let dir = directory();
    let path = dir.path().join("disk.vmdk");
    std::fs::write(dir.path().join("disk-flat.vmdk"), [1; 1024]).unwrap();
    for line in ["RW 4 FLAT \"disk-flat.vmdk\" 0", "RW 1 FLAT \"disk-flat.vmdk\" 2"] {
        std::fs::write(&path, format!("# Disk DescriptorFile\nversion=1\n{line}\n")).unwrap();
        let error = refused(&path).await;
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("truncated"), "{error}");
    }
}

#[tokio::test]
async fn flat_disks_of_vmware_are_read() {
    let (dir, disk) = with_sample();
    let path = dir.path().join("disk.vmdk");
    let half = SAMPLE / 1024 * 512;
    // As ESX writes it; and two files of Workstation's, the first with room before its data, and
    // a hole between them.
    std::fs::write(dir.path().join("disk-flat.vmdk"), &disk).unwrap();
    std::fs::write(dir.path().join("disk-f001.vmdk"), [&[9; 512], &disk[..half]].concat()).unwrap();
    std::fs::write(dir.path().join("disk-f002.vmdk"), &disk[half..]).unwrap();
    let (all, first, second) = (SAMPLE / 512, half / 512, (SAMPLE - half) / 512);
    let with_hole = [&disk[..half], &[0; 1 << 20], &disk[half..]].concat();
    for (extents, expected) in [
        (format!("RW {all} VMFS \"disk-flat.vmdk\"\n"), &disk),
        (
            format!(
                "RW {first} FLAT \"disk-f001.vmdk\" 1\nRW 2048 ZERO\nrdonly {second} flat \
                 \"disk-f002.vmdk\" 0\n"
            ),
            &with_hole,
        ),
    ] {
        let text = format!(
            "# Disk DescriptorFile\nversion=1\nencoding=\"UTF-8\"\nCID=fffffffe\nparentCID=ffffffff\n\
             isNativeSnapshot=\"no\"\ncreateType=\"vmfs\"\n\n# Extent description\n{extents}\n\
             # Change Tracking File\nchangeTrackPath=\"disk-ctk.vmdk\"\n\n\
             # The Disk Data Base\n#DDB\n\nddb.adapterType = \"lsilogic\"\n"
        );
        std::fs::write(&path, text).unwrap();
        let device = open_as(&path, true).await.unwrap_or_else(|e| panic!("{extents}: {e}"));
        conformance::check_read_only(&*device, expected).await;
        let list = device.extents(Span::whole(device.size()), 1000).await.unwrap();
        assert_eq!(list.last().unwrap().span.end(), device.size());
    }
}

#[tokio::test]
async fn a_flat_vmdk_that_is_a_difference_or_damaged_is_refused() {
    let dir = directory();
    std::fs::write(dir.path().join("disk-flat.vmdk"), [1; 1024]).unwrap();
    let path = dir.path().join("disk.vmdk");
    for (line, kind) in [
        ("parentCID=12345678", ErrorKind::Denied),
        ("parentcid = 12345678", ErrorKind::Denied),
        ("parentFileNameHint=\"base.vmdk\"", ErrorKind::Denied),
        ("rubbish", ErrorKind::Corrupt),
        ("RW 18446744073709551615 ZERO", ErrorKind::Corrupt),
        ("RW 2 SPARSE \"disk-s001.vmdk\"", ErrorKind::Unsupported),
    ] {
        let text = "# Disk DescriptorFile\nversion=1\nRW 2 FLAT \"disk-flat.vmdk\" 0\n";
        std::fs::write(&path, format!("{text}{line}\n")).unwrap();
        let error = refused(&path).await;
        assert_eq!(error.kind(), kind, "{line}: {error}");
    }
}

#[tokio::test]
async fn a_sparse_vmdk_that_needs_other_files_is_refused() {
    let (dir, _) = with_sample();
    if !qemu_img(&dir, &["convert", "-f", "raw", "disk.raw", "-O", "vmdk", "base.vmdk"]) {
        return;
    }
    let create = ["create", "-q", "-f", "vmdk", "-b", "base.vmdk", "-F", "vmdk", "over.vmdk"];
    assert!(qemu_img(&dir, &create));
    assert_eq!(refused(&dir.path().join("over.vmdk")).await.kind(), ErrorKind::Denied);
    patch(&dir.path().join("base.vmdk"), 12, &0u64.to_le_bytes());
    assert_eq!(refused(&dir.path().join("base.vmdk")).await.kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn damaged_images_of_converted_formats_are_refused() {
    let (dir, _) = with_sample();
    for (driver, cut) in [("vpc", 511), ("vhdx", 70_000), ("vdi", 100), ("vmdk", 600)] {
        let convert = ["convert", "-f", "raw", "disk.raw", "-O", driver, "disk.image"];
        if !qemu_img(&dir, &convert) {
            return;
        }
        let path = dir.path().join("disk.image");
        let image = std::fs::read(&path).unwrap();
        std::fs::write(&path, &image[..cut]).unwrap();
        assert_eq!(refused(&path).await.kind(), ErrorKind::Corrupt, "{driver}");
    }
}

/// Either it is refused as damaged, or nothing of the disk is missing.
async fn whole_or_refused(path: &Path, disk: &[u8], what: &str) -> bool {
    match open_as(path, true).await {
        Ok(device) => {
            assert!(contents(&*device).await.starts_with(disk), "{what}: data is missing");
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
            assert_eq!(error.message().lines().count(), 1, "{what}: {error}");
            true
        }
    }
}

#[tokio::test]
async fn a_truncated_image_of_a_converted_format_is_refused_wherever_it_is_cut() {
    let (dir, disk) = with_sample();
    for args in [
        &["vdi"][..],
        &["vdi", "-o", "static=on"],
        &["vmdk"],
        &["vmdk", "-o", "subformat=streamOptimized"],
        &["vhdx"],
        &["vpc", "-o", "subformat=dynamic,force_size=on"],
    ] {
        let convert = [&["convert", "-f", "raw", "disk.raw", "disk.image", "-O"], args].concat();
        if !qemu_img(&dir, &convert) {
            return;
        }
        let path = dir.path().join("disk.image");
        let image = std::fs::read(&path).unwrap();
        let mut refused = 0;
        for eighth in 1..8 {
            std::fs::write(&path, &image[..image.len() * eighth / 8]).unwrap();
            let what = format!("{args:?}, {eighth}/8");
            refused += usize::from(whole_or_refused(&path, &disk, &what).await);
        }
        assert!(refused >= 5, "{args:?}: {refused}");
        std::fs::write(&path, &image[..image.len() - 1]).unwrap();
        whole_or_refused(&path, &disk, &format!("{args:?}, the last byte")).await;
        std::fs::write(&path, &image).unwrap();
        assert!(!whole_or_refused(&path, &disk, &format!("{args:?}, whole")).await);
    }
}

#[tokio::test]
async fn a_vhd_whose_geometry_is_smaller_than_its_disk_is_read_to_the_end() {
    use vhd::tests::{fixed_footer, patched};
    let (dir, disk) = with_sample();
    let path = dir.path().join("disk.vhd");
    let force = ["-O", "vpc", "-o", "subformat=dynamic,force_size=on", "disk.vhd"];
    if !qemu_img(&dir, &[&["convert", "-f", "raw", "disk.raw"], &force[..]].concat()) {
        return;
    }
    // As VirtualBox writes it: by somebody whom qemu does not know, with the geometry of a part.
    let mut image = std::fs::read(&path).unwrap();
    let end = image.len() - 512;
    let footer = patched(image[end..].to_vec(), 28, b"vbox");
    let footer = patched(footer, 56, &[0, 10, 4, 17]);
    image[..512].copy_from_slice(&footer);
    image[end..].copy_from_slice(&footer);
    std::fs::write(&path, &image).unwrap();
    assert!(contents(&*open_as(&path, true).await.unwrap()).await == disk, "dynamic");
    std::fs::write(&path, [disk.clone(), fixed_footer(SAMPLE as u64)].concat()).unwrap();
    assert!(contents(&*open_as(&path, true).await.unwrap()).await == disk, "fixed");
}

#[tokio::test]
async fn a_fixed_vhd_that_is_not_as_long_as_its_footer_says_is_refused() {
    use vhd::tests::fixed_footer;
    let dir = directory();
    let path = dir.path().join("disk.vhd");
    for body in [0, 512, SAMPLE - 512, SAMPLE + 512] {
        std::fs::write(&path, [vec![7; body], fixed_footer(SAMPLE as u64)].concat()).unwrap();
        let error = refused(&path).await;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{body}: {error}");
        assert!(error.message().contains("truncated"), "{body}: {error}");
    }
}

#[tokio::test]
async fn a_vhd_with_a_damaged_footer_or_header_is_refused() {
    let (dir, _) = with_sample();
    let path = dir.path().join("disk.vhd");
    let args = ["convert", "-f", "raw", "disk.raw", "-O", "vpc", "disk.vhd"];
    if !qemu_img(&dir, &args) {
        return;
    }
    let image = std::fs::read(&path).unwrap();
    let end = image.len() - 512;
    // The size in the footer; the entries of the map, and a byte that nobody uses, of the header.
    for (at, what) in [(end + 55, "footer"), (512 + 31, "header"), (512 + 1000, "header")] {
        std::fs::write(&path, &image).unwrap();
        patch(&path, at, &[image[at] ^ 0x40]);
        let error = refused(&path).await;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains(&format!("{what} is damaged")), "{error}");
    }
}

/// An ESX sparse extent: a header, a directory of one table, the table, a grain of one sector.
fn esx_extent(grain_at: u32) -> Vec<u8> {
    let mut extent = b"COWD".to_vec();
    for number in [1u32, 3, 8, 1, 4, 1] {
        extent.extend(number.to_le_bytes());
    }
    extent.resize(4 * 512, 0);
    extent.extend(5u32.to_le_bytes());
    extent.resize(5 * 512, 0);
    extent.extend(grain_at.to_le_bytes());
    extent.resize(5 * 512 + 4096 * 4, 0);
    extent.extend([9; 512]);
    extent
}

#[tokio::test]
async fn an_esx_extent_that_ends_before_its_data_does_is_refused() {
    let dir = directory();
    let path = dir.path().join("disk.vmdk");
    let check = |extent: Vec<u8>| {
        std::fs::write(&path, extent).unwrap();
        truncated::vmdk(&std::fs::File::open(&path).unwrap(), &path)
    };
    check(esx_extent(37)).unwrap();
    for at in [38, u32::MAX] {
        let error = check(esx_extent(at)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("truncated: the data of offset 0 lies"), "{error}");
    }
    let mut cut = esx_extent(37);
    cut.truncate(5 * 512 + 100);
    assert!(check(cut).unwrap_err().message().contains("its map lies behind the end"));
}

#[test]
fn a_vmdk_whose_tables_share_a_byte_is_refused_before_it_is_read_again() {
    let dir = directory();
    let path = dir.path().join("disk.vmdk");
    // A disk of so many sectors, 4096 for each table; the second table is at sector `second`.
    let check = |sectors: u32, count: u32, second: u32| {
        let mut extent = esx_extent(37);
        extent[12..16].copy_from_slice(&sectors.to_le_bytes());
        extent[24..28].copy_from_slice(&count.to_le_bytes());
        extent[4 * 512 + 4..4 * 512 + 8].copy_from_slice(&second.to_le_bytes());
        std::fs::write(&path, extent).unwrap();
        truncated::vmdk(&std::fs::File::open(&path).unwrap(), &path)
    };
    check(4096, 1, 5).unwrap();
    for second in [5, 6, 36] {
        let error = check(8192, 2, second).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("share one table"), "{second}: {error}");
    }
    // Tables that the disk has no use for are not read.
    check(4096, u32::MAX, 5).unwrap();
    let error = check(u32::MAX, u32::MAX, 5).unwrap_err();
    assert!(error.message().contains("lies behind the end"), "{error}");
}

#[tokio::test]
async fn a_packed_file_is_no_raw_disk_unless_it_is_said_to_be_one() {
    let dir = directory();
    let path = dir.path().join("disk.raw.gz");
    let mut file = b"\x1f\x8b\x08".to_vec();
    file.resize(1024, 7);
    std::fs::write(&path, &file).unwrap();
    let error = refused(&path).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("unpack it first: zcat "), "{error}");
    assert_eq!(packed(&path).unwrap(), Some(Packed::Gzip));
    let scratch = dir.path().to_owned();
    let options = OpenOptions { format: Some(Format::Raw), read_only: true, scratch };
    assert_eq!(contents(&*open(&path, options).await.unwrap()).await, file);
}

#[tokio::test]
async fn a_converted_image_without_room_for_it_names_the_scratch_directory() {
    let (dir, _) = with_sample();
    if !qemu_img(&dir, &["convert", "-f", "raw", "disk.raw", "-O", "vdi", "disk.image"]) {
        return;
    }
    let scratch = dir.path().join("nowhere");
    let options = OpenOptions { format: None, read_only: true, scratch };
    let error = open(&dir.path().join("disk.image"), options).await.err().unwrap();
    assert!(error.message().contains("nowhere"), "{error}");
}

/// A sound qcow2 image, and a compressed one.
static SOUND: LazyLock<Option<[Vec<u8>; 2]>> = LazyLock::new(|| {
    let image = |options: &[&str]| {
        let (_dir, path, _) = qcow2_sample(options)?;
        Some(std::fs::read(path).unwrap())
    };
    Some([image(&[])?, image(&["-c"])?])
});

/// Whatever is in a file: a device or an error, and requests that end.
async fn survives(path: &Path, read_only: bool) {
    let Ok(device) = open_as(path, read_only).await else { return };
    let part = Span::whole(device.size().min(4 << 20));
    let mut buf = vec![0; part.len() as usize];
    let _ = device.read(part, &mut buf).await;
    let _ = device.extents(part, 1000).await;
    if !read_only {
        let _ = device.write(part, &buf, Durability::Buffered).await;
        let mode = ZeroMode { may_punch: true, only_if_fast: false };
        let _ = device.zero(part, mode, Durability::Buffered).await;
        let _ = device.flush().await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() })]
    #[test]
    fn no_damage_to_a_qcow2_image_gets_past_an_error(
        damage in prop::collection::vec((0usize..4, any::<prop::sample::Index>(), any::<u8>()), 1..12),
        compressed in any::<bool>(), read_only in any::<bool>(),
    ) {
        let Some(images) = SOUND.as_ref() else { return Ok(()) };
        let mut image = images[usize::from(compressed)].clone();
        let dir = directory();
        let path = dir.path().join("disk.qcow2");
        for (region, index, byte) in damage {
            // Mostly where the structure is: header, tables.
            let limit = [112, 5 << 16, 5 << 16, image.len()][region].min(image.len());
            image[index.index(limit)] = byte;
        }
        std::fs::write(&path, image).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(std::time::Duration::from_secs(20), survives(&path, read_only))
                .await
                .expect("a request does not end");
        });
    }
}

#[tokio::test]
async fn copying_from_memory_to_raw_and_back_keeps_every_byte() {
    let disk = sample(SAMPLE);
    let source = Memory::from(disk.clone());
    let raw = fresh(Format::Raw, disk.len() as u64).await;
    let options = CopyOptions { depth: 3, fresh: true };
    block::copy(&source, &*raw, options, &|_| {}).await.unwrap();
    assert_eq!(contents(&*raw).await, disk);
}
