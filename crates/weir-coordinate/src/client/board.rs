//! What this instance tells the others through the board of the store, and hears from them, once a second.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    time::{Instant, timeout},
};

use super::StoreClient;
use weir_limit::Timestamp;
use weir_store::{
    StoreError, Summaries,
    board::{BoardPost, BoardReply},
    remote::{Remote, RemoteError},
};

/// The most notes that wait to be taken.
const MAX_NOTES: usize = 1_000;

/// How long summaries that were read are returned again.
const READ_EVERY: Duration = Duration::from_secs(1);

/// This instance's side of the board.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// The one that was not written yet.
    summary: Mutex<Option<Arc<[u8]>>>,
    heard: Mutex<HeardNotes>,
    has_news: Notify,
    /// What was read last, and when.
    summaries: AsyncMutex<Option<(Instant, Summaries)>>,
}

#[derive(Debug, Default)]
struct HeardNotes {
    /// On the store's clock.
    until: Timestamp,
    notes: Vec<(Timestamp, Vec<u8>)>,
}

// === impl Board ===

impl Board {
    /// Replaces the summary of this instance.
    pub(crate) fn summarize(&self, summary: Vec<u8>) {
        *self.summary.lock() = Some(summary.into());
    }

    /// Waits for the next notes.
    pub(crate) async fn notes(&self) -> Vec<(Timestamp, Vec<u8>)> {
        loop {
            let news = self.has_news.notified();
            let notes = std::mem::take(&mut self.heard.lock().notes);
            if !notes.is_empty() {
                return notes;
            }
            news.await;
        }
    }

    fn hear(&self, notes: &[(Timestamp, Vec<u8>)]) {
        let mut heard = self.heard.lock();
        // two posts may have asked for the same ones
        let last = heard.until;
        heard.notes.extend(notes.iter().filter(|(at, _)| *at > last).cloned());
        let extra = heard.notes.len().saturating_sub(MAX_NOTES);
        heard.notes.drain(..extra);
        if let Some((at, _)) = notes.last() {
            heard.until = heard.until.max(*at);
            self.has_news.notify_one();
        }
    }
}

// === impl StoreClient ===

impl<R: Remote> StoreClient<R> {
    /// Tells the others what is new here, and hears from them. Both follow later if the store does not reply.
    pub(super) async fn exchange_news(&self) {
        if self.remote.has_board() {
            let summary = self.board.summary.lock().take();
            let _ = self.post(summary.as_deref(), None, false).await;
        }
    }

    async fn post(
        &self,
        summary: Option<&[u8]>,
        note: Option<&[u8]>,
        reads_summaries: bool,
    ) -> Result<BoardReply, RemoteError> {
        let read_until = self.board.heard.lock().until;
        let instance = &*self.settings.instance;
        let post = BoardPost { instance, summary, note, read_until, reads_summaries };
        let reply = timeout(self.settings.heartbeat.into(), self.remote.post(post)).await;
        let reply = reply.unwrap_or(Err(RemoteError::TimedOut(self.settings.heartbeat)))?;
        self.board.hear(&reply.notes);
        Ok(reply)
    }

    /// Writes `note` for all instances.
    pub(crate) async fn announce(&self, note: &[u8]) -> Result<(), StoreError> {
        if note.len() > BoardPost::MAX_NOTE {
            return Err(StoreError::Unsupported("instances tell each other of at most 4 KB of entries"));
        }
        let reply = self.post(None, Some(note), false).await.map_err(|error| unavailable(&error))?;
        if reply.is_written {
            Ok(())
        } else {
            Err(StoreError::Unsupported("instances have told each other 10,000 resets within an hour"))
        }
    }

    /// Returns what the instances have written of themselves, at most a second ago.
    pub(crate) async fn summaries(&self) -> Result<Summaries, StoreError> {
        let mut last = self.board.summaries.lock().await;
        if let Some((read, summaries)) = &*last
            && read.elapsed() < READ_EVERY
        {
            return Ok(Arc::clone(summaries));
        }
        let reply = self.post(None, None, true).await.map_err(|error| unavailable(&error))?;
        let summaries = Summaries::from(reply.summaries);
        *last = Some((Instant::now(), Arc::clone(&summaries)));
        Ok(summaries)
    }
}

fn unavailable(error: &RemoteError) -> StoreError {
    StoreError::Unavailable(error.to_string())
}
