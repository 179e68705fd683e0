//! `osier run --dax` as a user meets it: programs that open and map a path, and find there what others stored.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod common;
mod windows;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use serde_json::Value;

use windows::*;

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap()
}

/// A program in Python with a path mapped as `m`.
fn mapped(path: &str, program: &str) -> String {
    format!("import mmap,os,sys\nf=os.open('{path}',os.O_RDWR)\nm=mmap.mmap(f,os.fstat(f).st_size)\n{program}")
}

#[test]
fn a_path_is_a_file_that_outlives_programs() {
    const MIB: u64 = 24;
    if !may_handle_faults() {
        return;
    }
    // With prefetching, pages are mapped ahead, over the ends of what has been given out.
    for (mode, options) in [("sleeping", &[][..]), ("spinning", &["--set", "cache.prefetch=next-n"][..])] {
        let device = Device::start(96, 4, options);
        let Some(program) = compile("bin/osier/tests/programs/dax.c", &device.path("dax"), &[]) else { return };
        let path = device.path("pool");
        let path = path.to_str().unwrap();
        let sized = format!("{path}={MIB}MiB");
        let (out, stats) = device.expect(&["--mode", mode, "--dax", &sized], &[&program, path, "24"]);
        assert_eq!(out, "well\n");
        assert_eq!(
            (&stats["dax"][0]["path"], &stats["dax"][0]["bytes"]),
            (&path.into(), &(MIB << 20).into()),
            "{stats}"
        );
        assert_eq!(stats.get("heap_bytes"), None, "the heap is ordinary memory: {stats}");
        // The second time it has its size.
        let (out, _) = device.expect(&["--mode", mode, "--dax", path], &[&program, path, "24", "check"]);
        assert_eq!(out, "well\n");
        assert!(!fs::exists(path).unwrap(), "nothing is made in the file system");
        let report = device.stop();
        // Filled, changed by the child, filled again; all but the cache's share leaves each time.
        assert!(number(&report, "evicted_dirty") > 3 * (MIB << 8) * 3 / 4, "{report}");
        assert_eq!((number(&report, "lost"), number(&report, "dropped")), (0, 0), "{report}");
    }
}

#[test]
fn where_the_cache_survives_a_loss_of_power_synchronous_mappings_are_had() {
    if !may_handle_faults() {
        return;
    }
    let device = Device::start(64, 4, &["--set", "cache.survives_power_loss=true"]);
    let Some(program) = compile("bin/osier/tests/programs/dax.c", &device.path("dax"), &[]) else { return };
    let (out, _) = device.expect(&["--dax", "/dev/dax0.0=8MiB"], &[&program, "/dev/dax0.0", "8", "durable"]);
    assert_eq!(out, "well\n");
}

#[test]
fn what_is_flushed_is_on_the_flash() {
    if !may_handle_faults() {
        return;
    }
    let Some(python) = installed("python3") else { return };
    // Programs of pages, by the device's figures, when 200 pages were stored to that all fit into the cache.
    let programmed = |options: &[&str], program: &str| {
        let device = Device::start(64, 8, options);
        let program = mapped("/pool", &format!("for p in range(200): m[p*4096]=1+p%250\n{program}"));
        let (_, stats) = device.expect(&["--dax", "/pool=4MiB"], &[&python, "-c", &program]);
        number(&stats["device"], "evicted_dirty")
    };
    assert_eq!(programmed(&[], ""), 0);
    assert_eq!(programmed(&[], "m.flush()"), 200);
    assert_eq!(programmed(&[], "os.fsync(f)"), 200);
    assert_eq!(programmed(&[], "m.flush(8192, 4096)"), 1);
    assert_eq!(programmed(&[], "g=os.open('/pool',os.O_RDWR|os.O_DSYNC); os.pwrite(g, b'x'*5000, 4096)"), 2);
    assert_eq!(programmed(&["--set", "cache.survives_power_loss=true"], "m.flush(); os.fsync(f)"), 0);
}

#[test]
fn programs_at_the_same_time_share_a_path() {
    if !may_handle_faults() {
        return;
    }
    let Some(python) = installed("python3") else { return };
    let device = Device::start(96, 4, &[]);
    let path = device.path("shared");
    let path = path.to_str().unwrap();
    let sized = format!("{path}=16MiB");
    let first = mapped(path, "m[0:5]=b'first'; m[-4:]=b'tail'; print('stored', flush=True)\ninput(); print(m[0:6])");
    let mut process = device
        .run(&["--dax", &sized], &[&python, "-c", &first])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut words = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    words.read_line(&mut line).unwrap();
    assert_eq!(line, "stored\n");
    // By another name of the same directory, with a heap of its own.
    let link = device.path("link");
    std::os::unix::fs::symlink(device.directory.path(), &link).unwrap();
    let linked = link.join("shared");
    let second = mapped(linked.to_str().unwrap(), "a=bytearray(8<<20); print(m[0:5], m[-4:]); m[0:6]=b'second'");
    let (out, stats) = device.expect(&["--heap", "64MiB", "--dax", path], &[&python, "-c", &second]);
    assert_eq!(out, "b'first' b'tail'\n");
    assert!(number(&stats, "used_bytes_max") > 8 << 20 && stats["dax"][0]["path"] == path, "{stats}");
    process.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut rest = String::new();
    words.read_to_string(&mut rest).unwrap();
    assert!(await_end(&mut process).success());
    assert_eq!(rest, "b'second'\n");
}

#[test]
fn what_a_program_starts_has_its_paths_if_that_is_wanted() {
    if !may_handle_faults() {
        return;
    }
    let Some(python) = installed("python3") else { return };
    let device = Device::start(64, 4, &[]);
    let child = mapped("/a/b", "print(m[0:3])");
    // Python's own children have nothing open that they do not know; the shell's have.
    let parent = mapped(
        "/a/b",
        &format!("m[0:3]=b'abc'; import subprocess; subprocess.run([{python:?}, '-c', {child:?}], check=True)"),
    );
    let run = |options: &[&str], program: &[&str]| {
        let mut all = vec!["--stats", "/dev/null", "--dax", "/a/b=8MiB"];
        all.extend(options);
        finish(device.run(&all, program))
    };
    let (status, out, err) = run(&["--children"], &[&python, "-c", &parent]);
    assert!(status.success() && out == "b'abc'\n", "{status}: {out}\n{err}");
    let shell = format!("{python} -c \"$1\"; exit $?");
    let (status, out, err) = run(&["--children"], &["/bin/sh", "-c", &shell, "sh", &child]);
    assert!(status.success() && out == "b'abc'\n", "{status}: {out}\n{err}");
    let (status, _, err) = run(&[], &[&python, "-c", &parent]);
    assert!(status.code() == Some(1) && err.contains("No such file or directory: '/a/b'"), "{status}: {err}");
}

#[test]
fn fio_verifies_what_it_wrote_to_a_path() {
    if !may_handle_faults() {
        return;
    }
    let Some(fio) = installed("fio") else { return };
    let device = Device::start(128, 4, &[]);
    let path = device.path("file");
    let path = path.to_str().unwrap();
    let sized = format!("{path}=24MiB");
    for engine in ["mmap", "psync"] {
        for way in ["randwrite", "randread"] {
            let named = [format!("--filename={path}"), format!("--ioengine={engine}"), format!("--rw={way}")];
            let mut program =
                vec![fio.as_str(), "--name=x", "--bs=4k", "--verify=crc32c", "--size=24M", "--norandommap=0"];
            program.extend(["--output-format=json", "--verify_fatal=1", "--verify_state_save=0", "--randseed=7"]);
            program.extend(named.iter().map(String::as_str));
            let (out, _) = device.expect(&["--dax", &sized], &program);
            let report: Value = serde_json::from_str(&out[out.find('{').unwrap()..]).unwrap();
            let job = &report["jobs"][0];
            assert_eq!(job["error"], 0, "{engine}, {way}: {job}");
            assert_eq!(job["read"]["io_bytes"], 24 << 20, "{engine}, {way}: all of it was read and verified");
        }
    }
    assert!(!fs::exists(path).unwrap());
    let report = device.stop();
    assert!(number(&report, "evicted_dirty") > 2 * (24 << 8) * 3 / 4, "{report}");
}

#[test]
fn tools_read_and_write_a_path() {
    if !may_handle_faults() {
        return;
    }
    let device = Device::start(64, 4, &[]);
    let file = device.path("file");
    let bytes: Vec<u8> = (0..2_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&file, &bytes).unwrap();
    let run = |program: &[&str]| {
        let mut command = device.run(&["--stats", "/dev/null", "--dax", "/pool=2MiB"], program);
        command.output().unwrap()
    };
    let from = format!("if={}", file.display());
    let copied = run(&["/bin/dd", &from, "of=/pool", "bs=64k", "conv=notrunc,fsync", "status=none"]);
    assert!(copied.status.success(), "{copied:?}");
    let shown = run(&["/bin/cat", "/pool"]);
    assert!(shown.status.success() && shown.stdout == bytes, "{}", String::from_utf8_lossy(&shown.stderr));
    let listed = run(&["/bin/ls", "-l", "/pool"]);
    let line = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.status.success() && listed.stderr.is_empty(), "{line}{}", String::from_utf8_lossy(&listed.stderr));
    assert!(line.starts_with('-') && line.contains("2097152") && line.ends_with("/pool\n"), "{line}");
    let emptied = run(&["/bin/dd", &from, "of=/pool", "status=none"]);
    assert!(!emptied.status.success(), "a path is not made empty");
}

#[test]
fn streams_and_attributes_of_a_path_are_those_of_a_file() {
    if !may_handle_faults() {
        return;
    }
    let device = Device::start(64, 4, &[]);
    let Some(program) = compile("bin/osier/tests/programs/streams.c", &device.path("streams"), &[]) else { return };
    // The same program on a file of memory says what is expected.
    let file = std::path::PathBuf::from(format!("/dev/shm/osier-streams-{}", std::process::id()));
    fs::File::create(&file).unwrap().set_len(2 << 20).unwrap();
    let plain = std::process::Command::new(&program).arg(&file).output();
    fs::remove_file(&file).unwrap();
    let plain = plain.unwrap();
    assert!(plain.status.success(), "{}", String::from_utf8_lossy(&plain.stderr));
    let (out, _) = device.expect(&["--dax", "/pool=2MiB"], &[&program, "/pool"]);
    assert_eq!(out, String::from_utf8(plain.stdout).unwrap());
    // What cannot be had is said.
    let (_, out, err) = finish(device.run(&["--dax", "/pool"], &[&program, "/pool", "anew"]));
    assert!(out == "Invalid argument\n" && err.contains("/pool is in a device's window"), "{out}{err}");
}

#[test]
fn a_path_is_zero_at_first_and_no_heap_is_put_there() {
    if !may_handle_faults() {
        return;
    }
    let Some(python) = installed("python3") else { return };
    let device = Device::start(160, 4, &[]);
    let all = "b=bytearray(b'x')*(24<<20)";
    // A heap leaves its bytes where the path is to be; then one is put beside the path.
    device.expect(&["--heap", "96MiB"], &[&python, "-c", all]);
    let zero = mapped("/p", "assert m[:]==bytes(len(m)); m[:]=b'y'*len(m)");
    device.expect(&["--dax", "/p=64MiB"], &[&python, "-c", &zero]);
    device.expect(&["--heap", "96MiB"], &[&python, "-c", "b=bytearray(b'z')*(24<<20)"]);
    let (out, _) = device.expect(&["--dax", "/p"], &[&python, "-c", &mapped("/p", "print(m[:]==b'y'*len(m))")]);
    assert_eq!(out, "True\n");
    // Without a size the heap is what is left behind the path.
    let (_, stats) = device.expect(&[], &[&python, "-c", "b=bytearray(b'w')*(24<<20)"]);
    assert_eq!(number(&stats, "heap_bytes"), 96 << 20, "{stats}");
    let (out, _) = device.expect(&["--dax", "/p"], &[&python, "-c", &mapped("/p", "print(m[:]==b'y'*len(m))")]);
    assert_eq!(out, "True\n", "no heap was put there");
    let (status, _, err) = finish(device.run(&["--heap", "160MiB"], &["/bin/true"]));
    assert!(status.code() == Some(126) && err.contains("does not fit beside the others"), "{status}: {err}");
}

#[test]
fn what_a_path_cannot_have_is_said() {
    if !may_handle_faults() {
        return;
    }
    let device = Device::start(64, 4, &[]);
    let refuses = |dax: &str, code: i32, part: &str| {
        let said = refused(device.run(&["--dax", dax], &["/bin/true"]), code);
        assert!(said.contains(part), "{dax}: {said}");
    };
    refuses("/p", 3, "--dax /p=SIZE");
    refuses("/p=0", 3, "no bytes");
    refuses("/p=5000", 3, "no multiple of 4096");
    refuses("/p=65MiB", 7, "which has 67108864");
    refuses("/p\n=4096", 3, "line's end");
    let (status, _, err) = finish(device.run(&["--dax", "/p=8MiB"], &["/bin/true"]));
    assert!(status.success(), "{err}");
    refuses("/p=16MiB", 3, "8388608");
    refuses("/q=48MiB", 7, "does not fit");
    let (status, _, err) = finish(device.run(&["--dax", "/=4096"], &["/bin/true"]));
    assert!(status.code() == Some(2) && err.contains("names no file"), "{status}: {err}");
}

#[test]
fn a_program_whose_device_is_killed_gets_sigbus_by_its_path_too() {
    if !may_handle_faults() {
        return;
    }
    let Some(python) = installed("python3") else { return };
    let mut device = Device::start(64, 4, &[]);
    let endless = mapped("/p", "print('go', flush=True)\nwhile True:\n for p in range(0,len(m),4096): m[p]=1");
    let mut run = device.run(&["--dax", "/p=32MiB"], &[&python, "-c", &endless]);
    let mut process = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    device.process.kill().unwrap();
    let status = await_end(&mut process);
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    let mut said = String::new();
    process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("the device has died") && said.contains("cylon"), "{said}");
}
