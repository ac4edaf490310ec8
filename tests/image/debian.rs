//! The Debian package: built by `make deb`, and installed in a container in which systemd starts its unit with all that
//! the unit forbids.

use std::{
    fs,
    process::{self, Output},
};

use crate::docker::{Docker, docker, make, until};

/// Starts systemd. Mounts that it makes for a service must reach it, as on a host; on the second version of control
/// groups it writes into their file system.
const INIT: &str = "mount --make-rshared / && \
    { [ ! -e /sys/fs/cgroup/cgroup.controllers ] || mount -o remount,rw /sys/fs/cgroup; } && exec /lib/systemd/systemd";

/// A host with systemd, removed on drop.
struct Host {
    docker: &'static Docker,
    name: String,
}

impl Host {
    fn start(docker: &'static Docker) -> Self {
        let image = docker.script("scripts/systemd-image.sh");
        let name = format!("weir-test-systemd-{}", process::id());
        // it mounts, and filters system calls itself
        let rights = ["--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined"];
        let unconfined = ["--security-opt", "apparmor=unconfined", "--cgroupns", "private"];
        let folders = ["--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp"];
        let run = [&["run", "--detach", "--name", &name][..], &rights, &unconfined, &folders].concat();
        let host = Self { docker, name: name.clone() };
        docker.run(&[&run[..], &[&image, "sh", "-c", INIT]].concat());
        until("systemd has started", || {
            let output = host.try_exec("systemctl is-system-running");
            let state = String::from_utf8_lossy(&output.stdout);
            ["running", "degraded"].contains(&state.trim()).then_some(())
        });
        host
    }

    fn try_exec(&self, script: &str) -> Output {
        self.docker.try_run(&["exec", &self.name, "sh", "-c", script])
    }

    /// Runs a script, and returns what it prints.
    #[track_caller]
    fn exec(&self, script: &str) -> String {
        let output = self.try_exec(script);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {errors}\n{}", self.log());
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&self.try_exec("journalctl --no-pager --unit weir").stdout).into_owned()
    }

    fn await_health(&self) {
        until(&format!("weir is healthy: {}", self.log()), || {
            self.try_exec("weir health").status.success().then_some(())
        });
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.docker.try_run(&["rm", "--force", "--volumes", &self.name]);
    }
}

#[test]
fn the_debian_package_installs_a_service_that_answers() {
    let Some(docker) = docker() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let artifacts = folder.path().to_str().expect("UTF-8");
    let program = format!("DEB_PROGRAM={}", env!("CARGO_BIN_EXE_weir"));
    make(&["deb", &program, &format!("artifacts={artifacts}")]);
    let packages = fs::read_dir(artifacts).expect("the package").map(|file| file.expect("a file").path());
    let packages: Vec<_> = packages.collect();
    let [package] = &packages[..] else { panic!("{packages:?}") };
    let name = package.file_name().expect("a name").to_string_lossy();
    assert!(name.starts_with(concat!("weir_", env!("CARGO_PKG_VERSION"), "-1_")), "{name}");

    let host = Host::start(docker);
    docker.run(&["cp", package.to_str().expect("UTF-8"), &format!("{}:/root/weir.deb", host.name)]);
    host.exec("dpkg --install /root/weir.deb");
    host.await_health();
    let reply = host.exec("weir call --domain shop hello=world");
    assert!(reply.starts_with("OK\n  hello=world: OK, 2 of 3 left"), "{reply}");

    // it runs as nobody in particular, without rights, and sees none of the secrets of others
    let status = host.exec("cat /proc/$(systemctl show --property MainPID --value weir)/status");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).expect("a field").trim();
    assert!(!field("Uid:").starts_with('0'), "{status}");
    assert_eq!(field("CapBnd:"), "0000000000000000");
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1", "2"));
    assert_eq!(host.exec("stat --format %a /etc/weir/credentials"), "700");

    // a secret reaches the program, and nobody else
    host.exec("echo s3cret > /etc/weir/credentials/REDIS_AUTH && systemctl restart weir");
    host.await_health();
    assert!(
        host.log().contains("REDIS_AUTH is set, but has no effect: counts are kept in memory"),
        "{}",
        host.log()
    );
    let environment =
        host.exec("tr '\\0' '\\n' < /proc/$(systemctl show --property MainPID --value weir)/environ");
    assert!(
        environment.contains("RUNTIME_ROOT=/etc/weir") && !environment.contains("s3cret"),
        "{environment}"
    );

    // new rules by a reload; the watch of the directory would apply them as well
    host.exec(
        "printf 'domain: mine\\ndescriptors: [{ key: a, rate_limit: { requests: 1, per: 1h } }]\\n' \
         > /etc/weir/rules/mine.yaml && systemctl reload weir",
    );
    until("the new rules apply", || {
        let output = host.try_exec("weir call --domain mine --hits 0 a=b");
        String::from_utf8_lossy(&output.stdout).contains("1 of 1 left").then_some(())
    });

    // counters on disk survive another process, such as that of an upgrade
    host.exec("echo WEIR_DATA_DIR=/var/lib/weir >> /etc/default/weir && systemctl restart weir");
    host.await_health();
    let reply = host.exec("weir call --domain mine a=b");
    assert!(reply.contains("0 of 1 left"), "{reply}");
    host.exec("dpkg --force-confold --install /root/weir.deb");
    host.await_health();
    let reply = host.exec("weir call --domain mine --hits 0 a=b");
    assert!(reply.contains("0 of 1 left"), "{reply}");

    // it stops in peace
    host.exec("systemctl stop weir");
    assert_eq!(host.exec("systemctl show --property Result --value weir"), "success", "{}", host.log());
    host.exec("rm /etc/weir/rules/mine.yaml && dpkg --purge weir");
    assert_eq!(
        host.exec(
            "ls -d /etc/weir /usr/bin/weir /lib/systemd/system/weir.service /var/lib/weir /var/lib/private/weir \
             2> /dev/null || true"
        ),
        ""
    );
}
