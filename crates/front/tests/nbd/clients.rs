//! With libnbd's programs, fio and QEMU's.

use std::fs;

use super::common::memory::Disk;
use super::common::noise;
use super::{Rig, installed, succeed};

#[test]
fn nbdinfo_is_told_what_the_export_can() {
    let Some(mut nbdinfo) = installed("nbdinfo") else { return };
    let rig = Rig::new(1000);
    let said: serde_json::Value = serde_json::from_str(&succeed(nbdinfo.args(["--json", &rig.tcp()]))).unwrap();
    assert_eq!((&said["protocol"], &said["structured"]), (&"newstyle-fixed".into(), &true.into()));
    let export = &said["exports"][0];
    let expected = serde_json::json!({
        "export-size": 4_096_000, "is_read_only": false, "is_rotational": false, "can_cache": true, "can_df": true,
        "can_fast_zero": true, "can_flush": true, "can_fua": true, "can_multi_conn": true, "can_trim": true,
        "can_zero": true, "block_minimum": 1, "block_preferred": 4096, "block_maximum": 33_554_432,
        "contexts": ["base:allocation"],
    });
    for (key, value) in expected.as_object().unwrap() {
        // Block sizes have other names in other versions.
        let other = key.replace("block_", "block_size_");
        let found = export.get(key).or_else(|| export.get(&other));
        assert_eq!(found, Some(value), "{key} of {export}");
    }
}

#[test]
fn nbdinfo_lists_names_and_is_told_which_there_are_instead_of_a_wrong_one() {
    if installed("nbdinfo").is_none() {
        return;
    }
    let rig = Rig::new(16);
    let socket = rig.socket();
    let of = |name: &str| format!("nbd+unix:///{name}?socket={}", socket.display());
    let listed = succeed(installed("nbdinfo").unwrap().args(["--list", "--json", &of("")]));
    assert!(listed.contains("\"export-name\": \"memory\""), "{listed}");
    let refused = installed("nbdinfo").unwrap().env("LIBNBD_DEBUG", "1").arg(of("nothing")).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("there is no export \"nothing\" here; there is memory"),
        "{said}"
    );
}

#[test]
fn nbdcopy_copies_both_ways_whatever_the_order_in_which_requests_end() {
    if installed("nbdcopy").is_none() {
        return;
    }
    let rig = Rig::with(Disk::new(2048), Some(7), |_| {});
    let data = noise((2048 - 3) * 4096 + 77, 1);
    let (from, to) = (rig.directory.path().join("from"), rig.directory.path().join("to"));
    fs::write(&from, &data).unwrap();
    succeed(installed("nbdcopy").unwrap().arg(&from).arg(rig.unix()));
    succeed(installed("nbdcopy").unwrap().arg(rig.tcp()).arg(&to));
    let copied = fs::read(&to).unwrap();
    assert!(copied[..data.len()] == data && copied[data.len()..].iter().all(|byte| *byte == 0));
    // Four connections, larger requests.
    fs::write(&from, noise(2048 * 4096, 2)).unwrap();
    succeed(
        installed("nbdcopy").unwrap().args(["--connections=4", "--request-size=4194304"]).arg(&from).arg(rig.unix()),
    );
    assert!(fs::read(&from).unwrap() == rig.disk.bytes.read().unwrap().clone());
}

#[test]
fn nbdsh_finds_each_command_as_it_should_be() {
    let rig = Rig::with(Disk::new(256), Some(3), |_| {});
    each_command(&rig.unix());
}

/// Tries each command over an export of 256 blocks that are all holes.
pub fn each_command(uri: &str) {
    let Some(mut nbdsh) = installed("nbdsh") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nbd/commands.py");
    // nbdsh takes the first python3, and its module belongs to the system's.
    let script = format!("exec(open({script:?}).read())");
    nbdsh.args(["-c", &script]).env("NBD_URI", uri).env("PATH", "/usr/bin:/bin");
    let said = succeed(&mut nbdsh);
    assert_eq!(said.trim_end(), "done");
}

#[test]
fn fio_verifies_what_it_wrote_over_several_connections() {
    if installed("fio").is_none() {
        return;
    }
    let rig = Rig::with(Disk::new(4096), Some(11), |_| {});
    for (uri, block, jobs) in [(rig.tcp(), "4k-4k", 1), (rig.unix(), "512-64k", 3)] {
        let mut fio = installed("fio").unwrap();
        fio.current_dir(rig.directory.path()).args(["--name=v", "--ioengine=nbd", "--rw=randrw", "--iodepth=32"]);
        // Each job has a third of it, so that none verifies what another one writes.
        fio.args(["--size=5m", "--offset_increment=5m", "--verify=crc32c", "--verify_fatal=1", "--group_reporting"]);
        fio.arg(format!("--uri={uri}")).arg(format!("--bsrange={block}")).arg(format!("--numjobs={jobs}"));
        let said = succeed(&mut fio);
        assert!(said.contains("err= 0"), "{said}");
    }
}

#[test]
fn qemu_img_converts_compares_checks_and_maps() {
    if installed("qemu-img").is_none() {
        return;
    }
    let qemu_img = |arguments: &[&str]| succeed(installed("qemu-img").unwrap().args(arguments));
    let rig = Rig::new(4096);
    let file = rig.directory.path().join("image");
    let file = file.to_str().unwrap();
    let mut data = vec![0; 8 << 20];
    data[1 << 20..3 << 20].copy_from_slice(&noise(2 << 20, 5));
    fs::write(file, &data).unwrap();
    // As a raw disk.
    qemu_img(&["convert", "-n", "-f", "raw", "-O", "raw", file, &rig.unix()]);
    assert!(rig.disk.bytes.read().unwrap().clone()[..data.len()] == data);
    qemu_img(&["compare", "-f", "raw", "-F", "raw", file, &rig.tcp()]);
    let map: serde_json::Value =
        serde_json::from_str(&qemu_img(&["map", "--output=json", "-f", "raw", &rig.unix()])).unwrap();
    let allocated: u64 = map
        .as_array()
        .unwrap()
        .iter()
        .filter(|extent| extent["data"] == true)
        .map(|extent| extent["length"].as_u64().unwrap())
        .sum();
    assert_eq!(allocated, 2 << 20, "{map}");
    // As a disk that holds an image of QEMU's own, which is written and read in parts of blocks.
    qemu_img(&["create", "-q", "-f", "qcow2", "-o", "cluster_size=512", &rig.unix(), "8M"]);
    qemu_img(&["convert", "-n", "-f", "raw", "-O", "qcow2", file, &rig.unix()]);
    qemu_img(&["check", "-f", "qcow2", &rig.unix()]);
    qemu_img(&["compare", "-f", "raw", "-F", "qcow2", file, &rig.unix()]);
}
