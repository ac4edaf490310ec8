//! A fuzz target: the file of a recording.

use crate::{Merged, RecordedKind, Recording};

/// Reads a recording to its end.
pub fn recording(input: &[u8]) {
    let Ok(recordings) = Recording::read_all(input.to_vec()) else { return };
    let mut merged = Merged::of(&recordings, [("#0".to_owned(), "value")]);
    let mut events = 0;
    while let Some(event) = merged.next() {
        events += 1;
        let has_names = event.descriptors.iter().all(|descriptor| !descriptor.definition.domain.is_empty());
        let _ = (has_names, event.kind == RecordedKind::Reload, event.place);
    }
    assert!(events <= input.len() / 12, "an event has twelve bytes at least");
    assert!(merged.descriptors() <= input.len() / 8);
}
