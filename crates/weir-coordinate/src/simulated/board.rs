//! The board of the simulated store: what `board.lua` does in Redis.

use std::collections::BTreeMap;

use weir_limit::{Period, Timestamp};
use weir_store::board::{BoardPost, BoardReply};

/// What instances have written. The caller passes the time.
#[derive(Debug, Default)]
pub struct SimulatedBoard {
    notes: BTreeMap<Timestamp, Vec<u8>>,
    summaries: BTreeMap<String, (Timestamp, Vec<u8>)>,
}

// === impl SimulatedBoard ===

impl SimulatedBoard {
    /// Carries out `post` at `now`.
    pub fn execute(&mut self, post: &BoardPost<'_>, now: Timestamp) -> BoardReply {
        let micro = Period::from_nanos(1_000);
        self.notes.retain(|at, _| at.after(BoardPost::NOTE_LIFE) > now);
        let is_written = post.note.is_none_or(|note| {
            let at = self.notes.last_key_value().map_or(now, |(last, _)| now.max(last.after(micro)));
            let is_there = self.notes.values().any(|other| other == note);
            let has_room = is_there || self.notes.len() < BoardPost::MAX_NOTES;
            if has_room {
                self.notes.retain(|_, other| other != note);
                self.notes.insert(at, note.to_vec());
            }
            has_room
        });
        if let Some(summary) = post.summary {
            self.summaries.insert(post.instance.to_owned(), (now, summary.to_vec()));
        }
        let mut summaries = Vec::new();
        if post.reads_summaries {
            self.summaries.retain(|_, (at, _)| at.after(BoardPost::SUMMARY_LIFE) > now);
            summaries
                .extend(self.summaries.iter().map(|(name, (_, summary))| (name.clone(), summary.clone())));
        }
        let unread = self.notes.range(post.read_until.after(micro)..).take(BoardPost::MAX_READ);
        BoardReply {
            now,
            notes: unread.map(|(at, note)| (*at, note.clone())).collect(),
            summaries,
            is_written,
        }
    }
}
