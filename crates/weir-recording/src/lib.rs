//! Recordings: what was asked, and what was decided, so that other rules can be tried on it.
//!
//! | to | see |
//! | --- | --- |
//! | record | [`Recorder`], [`RecordedRequest`], [`RecordedStatus`] |
//! | write one that was not recorded | [`RecordingWriter`] |
//! | download one | [`RecordingSnapshot`], [`RecordingHeader`], [`ValueKey`] |
//! | read some | [`Recording`], [`Merged`], [`RecordedEvent`] |
//!
//! A recording is binary, and its numbers are little-endian. It begins with `weir-recording`, two bytes for the number of
//! the format, which is 1, and four for the length of the [header](RecordingHeader). After the header come blocks: four
//! bytes for the length of what follows the beginning of a block, two for the lane that wrote it, two that are 0, and
//! eight for its time, in nanoseconds since the epoch. The blocks of a lane are in the order of their decisions, and each
//! has a dictionary of its own, so that the oldest can go.
//!
//! A file may have several recordings, one after the other.
//!
//! A block is made of records, each of which begins with its length (four bytes, itself included), its kind, its flags,
//! and a number of things (two bytes). Readers skip kinds that they do not know.
//!
//! | kind | things | then |
//! | --- | --- | --- |
//! | 0: a descriptor, which later records of the block name by its number, from 0 | entries | see `definition.rs` |
//! | 1: decision, 2: give-back, 3: end, 4: settlement | descriptors | the time since the last record 7, or the block's (four bytes); for each descriptor its number (three bytes), flags, hits and what remained (four bytes each); its hits in eight bytes, for those whose flags say so; the twelve bytes of the name of a request in flight |
//! | 5: reset | 1 | the time, and the number of the descriptor in four bytes |
//! | 6: reload | 0 | the time |
//! | 7: time | 0 | eight bytes, as in the beginning of the block |

mod block;
mod definition;
mod fields;
mod file;
#[cfg(any(debug_assertions, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod reader;
mod ring;
mod state;
mod value_key;
mod writer;

pub use block::{RecordedKind, RecordedRequest, RecordedStatus};
pub use definition::{Definition, FirstSight};
pub use file::{RecordingHeader, RecordingSnapshot};
pub use reader::{Merged, RecordedDescriptor, RecordedEvent, Recording, RecordingError};
pub use ring::{Recorder, RecordingOrder, RecordingSettings, RecordingState};
pub use state::CounterBefore;
pub use value_key::ValueKey;
pub use writer::RecordingWriter;
