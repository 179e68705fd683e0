//! `osier nvme-tcp`, `osier nbd` and `osier vhost-user-blk` with the client that everybody has: a stock Linux kernel,
//! in QEMU. It makes file systems, fills them, and finds them as they were, whoever is killed meanwhile.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
mod guests;
mod served;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use guests::*;
use served::*;

const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-1111-2222-3333-444444444444";

/// A process that serves the device as a disk.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    /// `osier nvme-tcp` of the device `d`; port 0 is any free one.
    fn nvme(served: &Served, port: u16) -> Server {
        Server::start(served, "nvme-tcp", &["--nqn", NQN], port)
    }

    fn start(served: &Served, command: &str, more: &[&str], port: u16) -> Server {
        let listen = format!("127.0.0.1:{port}");
        let until = Instant::now() + LIMIT;
        loop {
            let mut server = osier(&served.home, &[command, "d", "--listen", &listen]);
            let mut process = server.args(more).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let mut words = BufReader::new(process.stderr.take().unwrap());
            let mut line = String::new();
            words.read_line(&mut line).unwrap();
            if let Some(rest) = line.split("127.0.0.1:").nth(1) {
                std::thread::spawn(move || words.lines().for_each(|line| eprintln!("{}", line.unwrap_or_default())));
                return Server { process, port: rest.split_whitespace().next().unwrap().parse().unwrap() };
            }
            process.wait().unwrap();
            assert!(Instant::now() < until, "{line}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A guest that makes a file system, with the programs it needs.
struct Guest {
    kernel: PathBuf,
    initrd: PathBuf,
}

impl Guest {
    fn new(directory: &Path, fs_module: &str, programs: &[&str]) -> Option<Guest> {
        Guest::of(&[], directory, fs_module, programs)
    }

    fn of(kernel: &[&str], directory: &Path, fs_module: &str, programs: &[&str]) -> Option<Guest> {
        let missing = programs.iter().find(|program| !Path::new("/usr/sbin").join(program).exists());
        if let Some(program) = missing {
            common::skipped(format_args!("{program} is not installed"));
            return None;
        }
        let ready = ready_of(kernel)?;
        let init = directory.join("init");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/guest_disk.c");
        let mut cc = Command::new("cc");
        let compiled = cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-static", "-o"]).arg(&init).arg(source).output();
        let compiled = compiled.unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let mut archive = Archive::new(&init);
        let modules = ready.join("modules");
        let order =
            closure(&modules, &["crc32c_generic", "e1000", "nvme-tcp", "nbd", "virtio_pci", "virtio_blk", fs_module]);
        for module in &order {
            archive.put(&format!("lib/{module}"), PROGRAM, (0, 0), &fs::read(modules.join(module)).unwrap());
        }
        archive.put("lib/order", PROGRAM, (0, 0), order.join("\n").as_bytes());
        archive.directory("sbin");
        for program in programs {
            archive.program(&Path::new("/usr/sbin").join(program), &format!("sbin/{program}"));
        }
        let initrd = directory.join("initrd");
        archive.save(&initrd);
        Some(Guest { kernel: ready.join("kernel"), initrd })
    }

    /// Boots it; `told` hears each line that it says.
    fn run(&self, words: &str, told: impl FnMut(&str)) {
        self.run_with(words, &[], told);
    }

    /// Boots it with more of QEMU's arguments.
    fn run_with(&self, words: &str, more: &[String], mut told: impl FnMut(&str)) {
        let words = format!("console=ttyS0 panic=-1 quiet mitigations=off nqn={NQN} {words}");
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-machine", "q35,accel=tcg", "-cpu", "max", "-m", "512", "-append", &words, "-nodefaults"]);
        qemu.args(["-serial", "stdio", "-display", "none", "-no-reboot", "-netdev", "user,id=n"]);
        qemu.args(["-device", "e1000,netdev=n"])
            .args(more)
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.initrd);
        let mut process = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut said = String::new();
        for line in BufReader::new(process.stdout.take().unwrap()).lines() {
            let line = line.unwrap_or_default();
            told(&line);
            said += &line;
            said.push('\n');
        }
        process.wait().unwrap();
        assert!(said.contains("guest: checked") && said.contains("guest: compares"), "{said}");
        assert!(said.contains("guest: well"), "{said}");
    }
}

/// The kernel sees no error.
fn calm(line: &str) {
    assert!(!line.to_lowercase().contains("i/o error"), "{line}");
}

const EXT4: [&str; 2] = ["mke2fs", "e2fsck"];

#[test]
fn a_stock_kernel_keeps_an_ext4_on_the_device() {
    let served = Served::new(&[]);
    let Some(guest) = Guest::new(served.home.path(), "ext4", &EXT4) else { return };
    let target = Server::nvme(&served, 0);
    guest.run(&format!("port={}", target.port), calm);
}

#[test]
fn a_stock_kernel_goes_on_when_the_target_or_a_domain_is_killed() {
    let served = Served::new(&[]);
    let Some(guest) = Guest::new(served.home.path(), "ext4", &EXT4) else { return };
    let mut target = Some(Server::nvme(&served, 0));
    let port = target.as_ref().unwrap().port;
    let mut killed = 0;
    guest.run(&format!("port={port} digests=1"), |line| match line {
        "guest: writes 5 of 24" | "guest: writes 15 of 24" => {
            // Killed, and started anew at the same port.
            target = None;
            target = Some(Server::nvme(&served, port));
            killed += 1;
        }
        "guest: writes 8 of 24" | "guest: writes 11 of 24" => {
            signal(served.children()[killed % 2], "KILL");
            killed += 1;
        }
        _ => {}
    });
    assert_eq!(killed, 4);
}

#[test]
fn a_stock_kernel_keeps_an_xfs_on_the_device() {
    let served = Served::sized("512MiB", &[]);
    let Some(guest) = Guest::new(served.home.path(), "xfs", &["mkfs.xfs", "xfs_repair"]) else { return };
    let target = Server::nvme(&served, 0);
    guest.run(&format!("port={} fs=xfs", target.port), calm);
}

#[test]
fn a_stock_kernel_keeps_an_ext4_over_nbd_while_domains_are_killed() {
    let served = Served::new(&[]);
    let Some(guest) = Guest::new(served.home.path(), "ext4", &EXT4) else { return };
    let server = Server::start(&served, "nbd", &[], 0);
    let mut killed = 0;
    guest.run(&format!("port={} via=nbd", server.port), |line| {
        calm(line);
        if line == "guest: writes 5 of 24" || line == "guest: writes 15 of 24" {
            signal(served.children()[killed], "KILL");
            killed += 1;
        }
    });
    assert_eq!(killed, 2);
}

/// `osier vhost-user-blk` of the device `d`, at a socket in its home.
fn disk_server(served: &Served) -> Child {
    let socket = served.home.path().join("d.vhost");
    let until = Instant::now() + LIMIT;
    loop {
        let path = socket.to_str().unwrap();
        let mut server = osier(&served.home, &["vhost-user-blk", "d", "--socket", path, "--queues", "4"]);
        let mut process = server.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut words = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        words.read_line(&mut line).unwrap();
        if line.contains("is a disk of virtual machines") {
            std::thread::spawn(move || words.lines().for_each(|line| eprintln!("{}", line.unwrap_or_default())));
            return process;
        }
        process.wait().unwrap();
        assert!(Instant::now() < until, "{line}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// What a machine of two processors needs to have the disk, with so many virtqueues.
fn machine(served: &Served, queues: u16) -> Vec<String> {
    let socket = served.home.path().join("d.vhost");
    let words = [
        "-smp 2 -object memory-backend-memfd,id=mem,size=512M,share=on -machine memory-backend=mem",
        &format!("-chardev socket,id=c,reconnect=1,path={}", socket.display()),
        &format!("-device vhost-user-blk-pci,chardev=c,num-queues={queues}"),
    ];
    words.join(" ").split(' ').map(str::to_owned).collect()
}

#[test]
fn a_virtual_machine_keeps_an_ext4_on_its_disk() {
    let served = Served::new(&[]);
    let Some(guest) = Guest::new(served.home.path(), "ext4", &EXT4) else { return };
    // Nothing can be asked before the device is up.
    drop(served.queue(1, 4096));
    let mut server = Server { process: disk_server(&served), port: 0 };
    let mut said = Vec::new();
    guest.run_with("via=virtio", &machine(&served, 2), |line| {
        calm(line);
        said.push(line.to_owned());
    });
    let zeroes = 256 << 20;
    let connected = format!("guest: connected: d, 131072 sectors of 4096, discards {zeroes}, zeroes {zeroes}");
    assert!(said.contains(&connected) && said.iter().any(|line| line == "guest: cut"), "{said:?}");
    signal(server.process.id(), "TERM");
    assert!(server.process.wait().unwrap().success());
    assert!(!served.home.path().join("d.vhost").exists(), "the socket is taken away at an end in order");
}

#[test]
fn a_virtual_machine_keeps_an_ext4_while_domains_are_killed() {
    let served = Served::new(&[]);
    let Some(guest) = Guest::new(served.home.path(), "ext4", &EXT4) else { return };
    drop(served.queue(1, 4096));
    let mut server = Some(Server { process: disk_server(&served), port: 0 });
    let mut killed = 0;
    guest.run_with("via=virtio", &machine(&served, 2), |line| {
        calm(line);
        match line {
            "guest: writes 5 of 24" | "guest: writes 15 of 24" => {
                signal(served.children()[killed], "KILL");
                killed += 1;
            }
            // One that ends in order finishes what it has taken; the next one goes on.
            "guest: writes 10 of 24" => {
                let mut process = server.take().unwrap();
                signal(process.process.id(), "TERM");
                assert!(process.process.wait().unwrap().success());
                server = Some(Server { process: disk_server(&served), port: 0 });
            }
            _ => {}
        }
    });
    assert_eq!(killed, 2);
}

#[test]
fn a_virtual_machine_goes_on_when_what_serves_its_disk_is_killed() {
    let mut served = Served::down("64MiB", &[]);
    let socket = served.home.path().join("d.vhost").to_str().unwrap().to_owned();
    served.options.extend(["--vhost-user-blk".to_owned(), socket.clone()]);
    served.start();
    let Some(guest) = Guest::new(served.home.path(), "ext4", &EXT4) else { return };
    let until = Instant::now() + LIMIT;
    while !served.log().contains("is a disk of virtual machines") {
        assert!(Instant::now() < until, "{}", served.log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let mut killed = 0;
    guest.run_with("via=virtio", &machine(&served, 2), |line| {
        calm(line);
        // Front ends come behind the two domains, and are started again by who started them.
        if ["3", "7", "11", "15", "19"].iter().any(|file| line == format!("guest: writes {file} of 24")) {
            signal(served.children()[2], "KILL");
            killed += 1;
        }
    });
    assert_eq!(killed, 5);
    served.stop();
    assert!(!Path::new(&socket).exists(), "the socket is taken away at an end in order");
}

/// The host's, and the controller's: as `nvme gen-dhchap-key` prints them.
const SECRETS: [&str; 2] = [
    "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "DHHC-1:02:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOEhYaHiImKi4yNjo+QkZKTvGwQfg==:",
];
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

/// The kernel and the target have one idea of DH-HMAC-CHAP: both ways, with the hash and group that the kernel offers.
#[test]
fn a_stock_kernel_proves_who_it_is_and_asks_the_target_to() {
    use std::os::unix::fs::PermissionsExt;
    let served = Served::new(&[]);
    let Some(guest) = Guest::of(&["backports"], served.home.path(), "ext4", &EXT4) else { return };
    let [host, controller] = SECRETS;
    let keys = served.home.path().join("hosts");
    fs::write(&keys, format!("{HOST} {host} {controller}\n")).unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let keys = keys.to_str().unwrap();
    let target = Server::start(&served, "nvme-tcp", &["--nqn", NQN, "--host-keys", keys], 0);
    let mut proved = 0;
    let words = format!("port={} loglevel=7 host_secret={host} controller_secret={controller}", target.port);
    guest.run(&words, |line| {
        calm(line);
        proved += u32::from(line.contains("controller authenticated"));
    });
    assert!(proved >= 2, "{proved} controllers proved who they are");
}
