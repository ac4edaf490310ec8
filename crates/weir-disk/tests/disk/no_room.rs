//! The bound on the size of the directory.

use crate::support::{Disk, until};

/// Above its bound the directory does not grow, and decisions go on. A clean stop writes the last changes nevertheless.
#[test]
fn nothing_is_written_above_the_bound() {
    let mut disk = Disk::new();
    disk.settings.max_bytes = Some(1);
    let opened = disk.open();
    until("it is noticed", || opened.metric("weir.disk.available") == 0);
    for hits in 0..20 {
        assert_eq!(opened.take("v", 1).before.0, hits);
    }
    until("it is pending", || opened.metric("weir.disk.pending") == 1);
    assert_eq!(opened.metric("weir.disk.written"), 0);
    opened.close();
    disk.settings.max_bytes = None;
    assert_eq!(disk.open().hits("v"), 20);
}
