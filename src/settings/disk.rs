use weir_coordinate::CoordinationSettings;
use weir_disk::{DiskSettings, DiskSync, OnDamage};

use super::{parse, reader::SettingReader, stores::Backend};

/// Below it there would not be room for the journals.
const MIN_BYTES: u64 = 256 << 20;

/// Also reads them if counts are kept elsewhere, so that typing errors are reported.
pub(super) fn disk(
    read: &mut SettingReader<'_>,
    backend: Backend,
    coordination: &CoordinationSettings,
) -> Option<DiskSettings> {
    let dir = read.text("WEIR_DATA_DIR");
    let sync = read.choice(
        "WEIR_DISK_SYNC",
        &[("always", DiskSync::Always), ("interval", DiskSync::Interval), ("os", DiskSync::Os)],
    );
    let on_damage =
        read.choice("WEIR_DISK_DAMAGE", &[("refuse", OnDamage::Refuse), ("continue", OnDamage::Continue)]);
    let max_bytes = read.optional("WEIR_DISK_MAX_BYTES", parse::bytes_from(MIN_BYTES, "1GiB"));
    if !matches!(backend, Backend::Disk) {
        return None;
    }
    if dir.is_empty() {
        read.missing("WEIR_DATA_DIR", "the directory of the data, since BACKEND_TYPE is disk");
    }
    Some(DiskSettings {
        dir: dir.into(),
        sync,
        interval: coordination.sync_interval,
        on_damage,
        max_bytes,
        budget: coordination.budget,
        on_store_failure: coordination.on_store_failure,
        max_counters: coordination.max_counters,
    })
}
