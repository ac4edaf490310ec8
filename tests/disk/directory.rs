//! Directories that the program refuses.

use std::fs;

use crate::{
    child::{run, stderr},
    support::Disk,
};

#[test]
fn a_second_process_is_refused() {
    let disk = Disk::new();
    let opened = disk.open();
    opened.take("v", 1);
    let dir = disk.settings.dir.to_str().expect("a plain path");
    let rules = disk.dir.path().join("rules");
    fs::create_dir(&rules).expect("a directory");
    fs::write(rules.join("d.yaml"), "domain: d\n").expect("a file");
    let output = run(
        &["serve", "--config", rules.to_str().expect("a plain path"), "--grpc-port", "0", "--port", "0"],
        &[("BACKEND_TYPE", "disk"), ("WEIR_DATA_DIR", dir)],
    );
    assert!(!output.status.success());
    let said = stderr(&output);
    assert!(said.contains(dir) && said.contains("in use by another process"), "{said}");
    // the first one is not disturbed
    opened.written();
    opened.close();
    assert_eq!(disk.open().hits("v"), 1);
}

#[test]
fn settings_of_the_disk_are_checked() {
    for (variables, expected) in [
        (&[("BACKEND_TYPE", "disk")][..], "WEIR_DATA_DIR is not set, but must be the directory of the data"),
        (&[("WEIR_DATA_DIR", "/x"), ("WEIR_DISK_SYNC", "often")], "always, interval or os"),
        (&[("WEIR_DATA_DIR", "/x"), ("WEIR_DISK_DAMAGE", "ignore")], "refuse or continue"),
        (&[("WEIR_DATA_DIR", "/x"), ("WEIR_DISK_MAX_BYTES", "1MiB")], "at least 256MiB"),
    ] {
        let output = run(&["serve"], variables);
        assert!(!output.status.success());
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}
