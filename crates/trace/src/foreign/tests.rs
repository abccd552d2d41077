use crate::{
    ExportOptions, Flags, Format, Header, Memory, Op, OpenTraceOptions, Request, Source, export,
    open, read,
};
use block::{ErrorKind, Result};
use proptest::prelude::*;
use std::io::Cursor;

fn drain(source: &mut dyn Source) -> Result<Vec<Request>> {
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    while source.read(&mut batch)? {
        all.extend_from_slice(&batch);
    }
    Ok(all)
}

fn parse(bytes: &[u8], options: &OpenTraceOptions) -> Result<(Header, Vec<Request>)> {
    let mut source = read(Box::new(Cursor::new(bytes.to_vec())), "t", options)?;
    let all = drain(&mut source)?;
    Ok((source.header().clone(), all))
}

fn sort() -> OpenTraceOptions {
    OpenTraceOptions { sort: true, ..OpenTraceOptions::default() }
}

fn read_at(time: u64, offset: u64, length: u32) -> Request {
    Request { time, offset, length, ..Request::default() }
}

fn write_at(time: u64, offset: u64, length: u32) -> Request {
    Request { op: Op::Write, ..read_at(time, offset, length) }
}

const MSR: &str = "\
128166372003061629,usr,0,Read,7014609920,24576,41286
128166372016382155,usr,1,Write,2517696512,4096,59998
";
const SPC: &str = "0,303567,3584,w,0.000000\n1,55590,3072,R,0.026214,extra\n";
const FIO2: &str = "\
fio version 2 iolog
/dev/sdb add
/dev/sdb open
/dev/sdb read 0 4096
/dev/sdb wait 5 0
/dev/sdb write 4096 8192
/dev/sdb sync 0 0
/dev/sdb close
";
const FIO3: &str = "\
fio version 3 iolog
0 a add
1 a open
10 a read 512 1024
20 b trim 4096 4096
25 a datasync 0 0
30 a close
";
const BLKPARSE: &str = "\
  8,0    1        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    1        2     0.000001829   697  G   W 223490 + 8 [kjournald]
  8,0    1        3     0.000005000   697  Q  RA 1000 + 16 [cat]
  8,0    1        4     0.000006000   697  D   W 223490 + 8 [kjournald]
  8,16   0        5     0.000007000   697  Q FWFS 64 + 8 [x]
  8,0    1        6     0.000009000     0  C   W 223490 + 8 [0]
  8,0    1        7     0.000010000   697  Q  FN [x]
CPU0 (sdb):
 Reads Queued:           1,        8KiB
";
const LOAD: &str = "\
A free text; with anything.
start ; sector; length ; op ;  replay_delay=0 ; replay_duration=0
      0.000000000 ;     37766853 ;   64 ; W ; 0.0 ; 0.0
      0.449518165 ;     8 ;   16 ; R ; 0.0 ; 0.0
";
const CSV: &str = "\
time_s,client,op,offset,length,dur_s,comment
0.000000,c1,read,0,512,0.000333,x
0.000238,c0,write,4096,4096,0.000056,y
0.5,c1,flush,0,0,,z
";
const MQSIM: &str = "11413000 0 657728 16 1\n11565000 1 8 64 0\n";
const LIS: &str = "230027 8 0 0\n8 64 0 1\n";
const IDS: &str = "*\n5\n7\n5\n";

fn oracle(records: &[(u32, u64, u32, i64)]) -> Vec<u8> {
    let record = |(time, id, size, next): &(u32, u64, u32, i64)| {
        [&time.to_le_bytes()[..], &id.to_le_bytes(), &size.to_le_bytes(), &next.to_le_bytes()]
            .concat()
    };
    records.iter().flat_map(record).collect()
}

fn vscsi(version: u16) -> Vec<u8> {
    let mut all = Vec::new();
    for (command, sector, time) in [(0x28u16, 63u64, 1000u64), (0x12, 0, 1001), (0x2a, 71, 1005)] {
        let (serial, length, segments) = (1u32.to_le_bytes(), 4096u32.to_le_bytes(), [1, 0, 0, 0]);
        let code = [command.to_le_bytes(), (version << 8 | 1).to_le_bytes()].concat();
        let numbers = [serial, length, segments].concat();
        let head = if version == 1 { [numbers, code] } else { [code, numbers] }.concat();
        all.extend(head);
        all.extend(sector.to_le_bytes());
        all.extend(time.to_le_bytes());
        if version == 2 {
            all.extend(7u64.to_le_bytes());
        }
    }
    all
}

/// A small trace in each format that is guessed.
fn samples() -> Vec<(Format, Vec<u8>)> {
    vec![
        (Format::Msr, MSR.into()),
        (Format::Spc, SPC.into()),
        (Format::Fio, FIO2.into()),
        (Format::Fio, FIO3.into()),
        (Format::Blkparse, BLKPARSE.into()),
        (Format::Load, LOAD.into()),
        (Format::Csv, CSV.into()),
        (Format::Mqsim, MQSIM.into()),
        (Format::Lis, LIS.into()),
        (Format::Ids, IDS.into()),
        (Format::OracleGeneral, oracle(&[(9, 1, 512, 2), (9, 2, 512, -1), (10, 1, 512, -1)])),
        (Format::Vscsi, vscsi(1)),
        (Format::Vscsi, vscsi(2)),
    ]
}

#[test]
fn every_format_is_told_from_all_others_in_any_compression() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    for (format, bytes) in samples() {
        let gz = {
            use std::io::Write;
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            encoder.write_all(&bytes).unwrap();
            encoder.finish().unwrap()
        };
        let zst = zstd::encode_all(&bytes[..], 1).unwrap();
        let plain = parse(&bytes, &OpenTraceOptions::default()).unwrap();
        assert!(!plain.1.is_empty());
        for form in [bytes, gz, zst] {
            std::fs::write(&path, form).unwrap();
            assert_eq!(crate::guess(&path, &OpenTraceOptions::default()).unwrap(), format);
            let mut source = open(&path, &OpenTraceOptions::default()).unwrap();
            assert_eq!(drain(&mut source).unwrap(), plain.1, "{format}");
        }
    }
}

#[test]
fn fields_become_what_they_mean() {
    let all = |bytes: &[u8]| parse(bytes, &OpenTraceOptions::default()).unwrap();
    let (header, msr) = all(MSR.as_bytes());
    assert_eq!((header.clients.as_slice(), header.latencies), (&["usr".to_owned()][..], true));
    assert_eq!(header.disks[1].name, "usr.1");
    assert_eq!(msr[0], Request { latency: 4_128_600, ..read_at(0, 7_014_609_920, 24_576) });
    let second = write_at(1_332_052_600, 2_517_696_512, 4096);
    assert_eq!(msr[1], Request { latency: 5_999_800, disk: 1, ..second });

    let (header, spc) = all(SPC.as_bytes());
    assert_eq!((spc[0], header.disks.len()), (write_at(0, 303_567 * 512, 3584), 2));
    assert_eq!(spc[1], Request { disk: 1, ..read_at(26_214_000, 55_590 * 512, 3072) });

    let flush = Request { op: Op::Flush, ..Request::default() };
    let (header, fio) = all(FIO2.as_bytes());
    let at = 5_000_000;
    assert_eq!(fio, [read_at(0, 0, 4096), write_at(at, 4096, 8192), Request { time: at, ..flush }]);
    assert!(header.times && header.disks[0].name == "/dev/sdb");
    let (_, fio) = all(FIO3.as_bytes());
    let trim = Request { op: Op::Trim, disk: 1, ..read_at(20_000, 4096, 4096) };
    assert_eq!(fio, [read_at(10_000, 512, 1024), trim, Request { time: 25_000, ..flush }]);

    let (header, blk) = all(BLKPARSE.as_bytes());
    assert_eq!(blk[0], Request { latency: 9000, ..write_at(0, 223_490 * 512, 4096) });
    assert_eq!(blk[1], read_at(5000, 512_000, 8192));
    assert_eq!(blk[2], Request { disk: 1, flags: Flags::FUA, ..write_at(7000, 32_768, 4096) });
    assert_eq!((blk[3], blk.len()), (Request { time: 10_000, ..flush }, 4));
    assert_eq!(header.disks[1].name, "8,16");

    let (_, load) = all(LOAD.as_bytes());
    assert_eq!(load, [write_at(0, 37_766_853 * 512, 32_768), read_at(449_518_165, 4096, 8192)]);

    let (header, csv) = all(CSV.as_bytes());
    assert_eq!(header.clients, ["c1", "c0"]);
    assert_eq!(csv[0], Request { latency: 333_000, ..read_at(0, 0, 512) });
    assert_eq!(csv[1], Request { latency: 56_000, client: 1, ..write_at(238_000, 4096, 4096) });
    assert_eq!(csv[2], Request { time: 500_000_000, ..flush });

    let (_, mqsim) = all(MQSIM.as_bytes());
    assert_eq!(mqsim[1], Request { disk: 1, ..write_at(11_565_000, 4096, 32_768) });

    let (header, ids) = all(IDS.as_bytes());
    assert_eq!(ids, [read_at(0, 20_480, 4096), read_at(1, 28_672, 4096), read_at(2, 20_480, 4096)]);
    assert!(!header.times && !header.ops && header.alignment == 4096);

    let (header, lis) = all(LIS.as_bytes());
    assert_eq!(lis[1], read_at(1, 4096, 32_768));
    assert!(!header.times && header.alignment == 512);

    for version in [1, 2] {
        let (header, vscsi) = all(&vscsi(version));
        assert_eq!(header.latencies, version == 2);
        let latency = if version == 1 { 0 } else { 7000 };
        assert_eq!(vscsi[0], Request { latency, ..read_at(0, 63 * 512, 4096) });
        assert_eq!(vscsi[1], Request { latency, ..write_at(5000, 71 * 512, 4096) });
    }
}

#[test]
fn errors_say_where_and_what_to_do() {
    let fail = |bytes: &[u8], options: &OpenTraceOptions| {
        let error = parse(bytes, options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        error.to_string()
    };
    let none = OpenTraceOptions::default();
    let as_format =
        |format| OpenTraceOptions { format: Some(format), ..OpenTraceOptions::default() };
    let broken = format!("{MSR}128166372016382155,usr,x,Write,1,4096,5\n");
    let message = fail(broken.as_bytes(), &as_format(Format::Msr));
    assert_eq!(message, "t: line 3: the disk number is not a number below 2^64: 'x'");
    let message = fail(b"\x00\x01\x02garbage\xff", &none);
    assert!(message.contains("tried sojourn, fio, blkparse"), "{message}");
    assert!(message.contains("--format"), "{message}");
    assert!(fail(b"", &none).contains("empty"));
    let mut cut = vscsi(1);
    cut.truncate(70);
    let message = fail(&cut, &as_format(Format::Vscsi));
    assert_eq!(message, "t: offset 64: a record of 32 bytes is cut off");
    let message = fail(b"time,op,offset,length\n1,R,0,512\n", &as_format(Format::Csv));
    assert!(message.contains("time_ns, _us, _ms or _s"), "{message}");
    let long = vec![b'1'; 70_000];
    assert!(fail(&long, &as_format(Format::Ids)).contains("line 1: the line is longer"));
    let far = format!("{} 8 0 0\n", u64::MAX / 512);
    assert!(fail(far.as_bytes(), &as_format(Format::Lis)).contains("2^63"));
}

#[test]
fn a_trace_out_of_order_is_refused_or_sorted() {
    let lines: Vec<&str> = CSV.lines().collect();
    let mixed = [lines[0], lines[3], lines[1], lines[2]].join("\n");
    let error = parse(mixed.as_bytes(), &OpenTraceOptions::default()).unwrap_err().to_string();
    assert!(error.contains("line 3") && error.contains("--sort"), "{error}");
    let times = |bytes: &[u8]| -> Vec<u64> {
        parse(bytes, &sort()).unwrap().1.iter().map(|r| r.time).collect()
    };
    assert_eq!(times(mixed.as_bytes()), [0, 238_000, 500_000_000]);
    let swapped: Vec<&str> = MSR.lines().rev().collect();
    assert_eq!(times(swapped.join("\n").as_bytes()), [0, 1_332_052_600]);
}

#[test]
fn a_shift_moves_places_but_not_flushes() {
    let options = OpenTraceOptions { shift: 512, ..OpenTraceOptions::default() };
    let (_, all) = parse(FIO3.as_bytes(), &options).unwrap();
    assert_eq!(all.iter().map(|r| r.offset).collect::<Vec<_>>(), [1024, 4608, 0]);
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let one = (0u64..5_000_000_000, 0u32..3, 0u32..3, 0usize..5, 0u64..1 << 40, 1u32..1 << 20);
    prop::collection::vec((one, any::<u32>(), 0u8..8), 1..60).prop_map(|all| {
        let mut time = 0;
        let build = |((gap, client, disk, op, offset, length), latency, flags): (
            (u64, u32, u32, usize, u64, u32),
            u32,
            u8,
        )| {
            time += gap;
            let op = Op::ALL[op];
            let (offset, length) = if op == Op::Flush { (0, 0) } else { (offset, length) };
            Request { time, client, disk, op, offset, length, latency, flags: Flags(flags) }
        };
        all.into_iter().map(build).collect()
    })
}

/// Numbers clients and disks in order of appearance, as reading names does.
fn renumbered(requests: &[Request]) -> Vec<Request> {
    let (mut clients, mut disks) = (Vec::new(), Vec::new());
    let number = |known: &mut Vec<u32>, n: u32| {
        known.iter().position(|k| *k == n).unwrap_or_else(|| {
            known.push(n);
            known.len() - 1
        }) as u32
    };
    let each = |r: &Request| Request {
        client: number(&mut clients, r.client),
        disk: number(&mut disks, r.disk),
        ..*r
    };
    requests.iter().map(each).collect()
}

fn through(requests: &[Request], format: Format, file: &str) -> (Vec<Request>, crate::Exported) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file);
    let mut source = Memory::new(Header::default(), requests.to_vec());
    let options = ExportOptions { format, unit: 4096 };
    let done = export(&mut source, &path, &options).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    let options = OpenTraceOptions { format: Some(format), ..OpenTraceOptions::default() };
    (drain(&mut open(&path, &options).unwrap()).unwrap(), done)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn csv_and_our_own_format_keep_everything(all in requests()) {
        prop_assert_eq!(through(&all, Format::Sojourn, "t.sjt").0, &all[..]);
        let wanted = renumbered(&all);
        prop_assert_eq!(&through(&all, Format::Csv, "t.csv").0, &wanted);
        prop_assert_eq!(&through(&all, Format::Csv, "t.csv.gz").0, &wanted);
        prop_assert_eq!(&through(&all, Format::Csv, "t.csv.zst").0, &wanted);
    }

    #[test]
    fn an_iolog_keeps_order_places_and_microseconds(all in requests()) {
        let wanted: Vec<Request> = renumbered(&all).iter().map(|r| Request {
            time: r.time / 1000 * 1000,
            client: 0,
            latency: 0,
            flags: Flags::NONE,
            op: if r.op == Op::Zero { Op::Trim } else { r.op },
            ..*r
        }).collect();
        prop_assert_eq!(through(&all, Format::Fio, "t.iolog").0, wanted);
    }

    #[test]
    fn a_load_keeps_reads_and_writes_in_sectors(all in requests()) {
        let all: Vec<Request> = all.into_iter().map(|r| Request { disk: 0, ..r }).collect();
        let (back, done) = through(&all, Format::Load, "t.load");
        let kept = all.iter().filter(|r| matches!(r.op, Op::Read | Op::Write));
        prop_assert_eq!(done.requests, done.records + done.left_out);
        prop_assert_eq!(back.len() as u64, done.records);
        for (a, b) in kept.zip(&back) {
            prop_assert_eq!((a.op, a.time, a.offset / 512 * 512), (b.op, b.time, b.offset));
            prop_assert!(b.end() >= a.end() && b.end() < a.end() + 512);
        }
    }

    #[test]
    fn oracle_records_name_the_next_use_of_their_block(all in requests()) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.oracleGeneral");
        let mut source = Memory::new(Header::default(), all.clone());
        let options = ExportOptions { format: Format::OracleGeneral, unit: 1 << 16 };
        let done = export(&mut source, &path, &options).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let records: Vec<&[u8]> = bytes.chunks_exact(24).collect();
        prop_assert_eq!(records.len() as u64, done.records);
        for (i, record) in records.iter().enumerate() {
            let later = records[i + 1..].iter().position(|other| other[4..12] == record[4..12]);
            let wanted = later.map_or(-1, |n| (i + 1 + n) as i64);
            prop_assert_eq!(i64::from_le_bytes(record[16..].try_into().unwrap()), wanted);
        }
        let options = OpenTraceOptions { unit: 1 << 16, ..OpenTraceOptions::default() };
        if !records.is_empty() {
            prop_assert_eq!(crate::guess(&path, &options).unwrap(), Format::OracleGeneral);
        }
    }

    #[test]
    fn damage_gives_an_error_or_other_requests_but_no_panic(
        which in 0usize..13, at in 0usize..1000, byte: u8, cut in 0usize..1000,
    ) {
        let (format, mut bytes) = samples().swap_remove(which);
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(bytes.len() - cut % bytes.len() / 4);
        for options in [sort(), OpenTraceOptions { format: Some(format), ..OpenTraceOptions::default() }] {
            match parse(&bytes, &options) {
                Ok((header, all)) => {
                    prop_assert!(all.windows(2).all(|w| w[0].time <= w[1].time));
                    prop_assert_eq!(header.requests, Some(all.len() as u64));
                }
                Err(e) => prop_assert!(e.to_string().starts_with("t: "), "{}", e),
            }
        }
    }
}

#[test]
fn what_a_header_says_of_times_and_latencies_is_known_before_the_first_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.iolog");
    let bytes = b"disk,offset,length\nd,0,512\nd,512,512\n".to_vec();
    let mut source = read(Box::new(Cursor::new(bytes)), "t", &OpenTraceOptions::default()).unwrap();
    assert!(!source.header().times);
    export(&mut source, &path, &ExportOptions { format: Format::Fio, unit: 4096 }).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("fio version 2 iolog\n"), "requests that were counted: {text}");
    let msr = || read(Box::new(Cursor::new(MSR)), "t", &OpenTraceOptions::default()).unwrap();
    let merged = crate::Merged::new(vec![("a".into(), msr())], crate::MergeOptions::default());
    assert!(merged.header().latencies);
}

#[test]
fn a_pipe_is_read_by_its_path_as_well() {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    let one = read_at(0, 4096, 512);
    let mut writer =
        crate::native::writer::Writer::new(Vec::new(), "t", Header::default(), crate::Effort::Low)
            .unwrap();
    writer.push(&one).unwrap();
    let (output, mut input) = std::io::pipe().unwrap();
    input.write_all(&writer.finish().unwrap()).unwrap();
    drop(input);
    let path = format!("/proc/self/fd/{}", output.as_raw_fd());
    let mut source = open(path.as_ref(), &OpenTraceOptions::default()).unwrap();
    assert_eq!(drain(&mut source).unwrap(), [one]);
}

#[test]
fn a_name_that_promises_compression_is_kept_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.oracleGeneral.zst");
    let mut source = Memory::new(Header::default(), vec![read_at(0, 0, 4096)]);
    let options = ExportOptions { format: Format::OracleGeneral, unit: 4096 };
    let error = export(&mut source, &path, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(!path.exists());
    for name in ["t.csv.xz", "t.csv.BZ2", "t.sjt.zip"] {
        let path = folder.path().join(name);
        let options = ExportOptions { format: Format::Csv, unit: 4096 };
        let error = export(&mut source, &path, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains(name) && error.message().contains(".zst"), "{error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
}

#[test]
fn the_file_that_a_link_leads_to_is_replaced_and_not_the_link() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("far")).unwrap();
    std::fs::write(path("far/t.csv"), "old").unwrap();
    std::os::unix::fs::symlink("far/t.csv", path("one.csv")).unwrap();
    std::os::unix::fs::symlink("one.csv", path("two.csv")).unwrap();
    std::os::unix::fs::symlink("far/new.csv", path("new-link.csv")).unwrap();
    let options = ExportOptions { format: Format::Csv, unit: 4096 };
    for (link, file) in [("two.csv", "far/t.csv"), ("new-link.csv", "far/new.csv")] {
        let mut source = Memory::new(Header::default(), vec![read_at(0, 0, 4096)]);
        export(&mut source, &path(link), &options).unwrap();
        assert!(path(link).is_symlink());
        let text = std::fs::read_to_string(path(file)).unwrap();
        assert!(text.starts_with("time_ns,"), "{file}: {text}");
        assert!(!path(file).is_symlink());
    }
    assert_eq!(std::fs::read_dir(path("far")).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn a_file_that_cannot_be_written_is_named_as_the_user_named_it() {
    let mut source = Memory::new(Header::default(), vec![]);
    let options = ExportOptions { format: Format::Csv, unit: 4096 };
    let error = export(&mut source, "/nowhere/at/all/t.csv".as_ref(), &options).unwrap_err();
    assert!(error.message().starts_with("/nowhere/at/all/t.csv: "), "{error}");
}

#[test]
fn a_load_may_have_its_text_and_titles_twice() {
    let (_, once) = parse(LOAD.as_bytes(), &OpenTraceOptions::default()).unwrap();
    let titles = LOAD.lines().take(2).collect::<Vec<_>>().join("\n");
    let twice = format!("{titles}\nCopied; by; a; script.\n\n{LOAD}");
    assert_eq!(parse(twice.as_bytes(), &OpenTraceOptions::default()).unwrap().1, once);
    // Text between requests is none of it.
    let broken = format!("{LOAD}and so on\n");
    let load = OpenTraceOptions { format: Some(Format::Load), ..OpenTraceOptions::default() };
    let error = parse(broken.as_bytes(), &load).unwrap_err();
    assert!(error.message().contains("line 5"), "{error}");
}

#[test]
fn columns_may_stand_between_tabs_or_semicolons_and_in_quotes() {
    let (_, plain) = parse(CSV.as_bytes(), &OpenTraceOptions::default()).unwrap();
    let quoted: String = CSV
        .lines()
        .map(|line| {
            line.split(',').map(|field| format!("\"{field}\"")).collect::<Vec<_>>().join(", ")
        })
        .map(|line| line + "\n")
        .collect();
    let texts = [CSV.replace(',', ";"), CSV.replace(',', "\t"), quoted.replace(", ", "\t"), quoted];
    for text in texts {
        assert_eq!(
            parse(text.as_bytes(), &OpenTraceOptions::default()).unwrap().1,
            plain,
            "{text}"
        );
    }
    let odd = "op,offset,length,comment\nR,4096,512,\"a, \"\"b\"\"\"\nR,8192,512,\"\"\n";
    let (_, requests) = parse(odd.as_bytes(), &OpenTraceOptions::default()).unwrap();
    assert_eq!(requests, [read_at(0, 4096, 512), read_at(1, 8192, 512)]);
    let csv = OpenTraceOptions { format: Some(Format::Csv), ..OpenTraceOptions::default() };
    for (line, why) in [("R,1,512,\"x", "never ends"), ("R,1,512,\"x\"y", "behind a quoted field")]
    {
        let text = format!("op,offset,length,comment\n{line}\n");
        let error = parse(text.as_bytes(), &csv).unwrap_err();
        assert!(error.message().contains("line 2") && error.message().contains(why), "{error}");
    }
}

#[test]
fn an_odd_row_of_a_file_called_csv_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("day.csv");
    std::fs::write(&path, "time_us,op,offset,length\n0,dance,0,4096\n1,R,0,4096\n").unwrap();
    let mut source = open(&path, &OpenTraceOptions::default()).unwrap();
    let error = drain(&mut source).unwrap_err();
    assert!(error.message().contains("line 2") && error.message().contains("dance"), "{error}");
    let other = dir.path().join("day.txt");
    std::fs::rename(&path, &other).unwrap();
    let error = open(&other, &OpenTraceOptions::default()).err().unwrap();
    assert!(error.message().contains("--format"), "{error}");
}

#[test]
fn a_flush_of_blkparse_is_read_without_a_sector_and_what_has_no_place_is_counted() {
    let text = "\
  8,0    1        1     0.000000000   697  Q   W 8 + 8 [x]
  8,0    1        2     0.000001000   697  Q FWS [x]
  8,0    1        3     0.000002000   697  Q   R [x]
  8,0    1        4     0.000003000     0  C FWS [0]
";
    let (header, requests) = parse(text.as_bytes(), &OpenTraceOptions::default()).unwrap();
    let flush = Request { time: 1000, op: Op::Flush, latency: 2000, ..Request::default() };
    assert_eq!(requests, [write_at(0, 4096, 4096), flush]);
    assert!(header.notes.contains("1 requests of no length were left out"), "{}", header.notes);
}

#[test]
fn damaged_compression_is_named() {
    let mut xz = vec![0xfd, b'7', b'z', b'X', b'Z', 0];
    xz.extend([0; 40]);
    for (bytes, name) in [(xz, "xz"), (vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 7], "gzip")] {
        let error = parse(&bytes, &OpenTraceOptions::default()).unwrap_err();
        assert!(error.message().contains(&format!("the {name} data")), "{error}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}
