//! The large pages. They are rendered one at a time, and everybody who waits for a page gets the same one. All pages
//! that clients have not read yet have a bounded number of bytes together: for the next one, the oldest is dropped.
//!
//! A page has no share in the accounts of connections, since many may read one page. Only the part that a connection is
//! about to write is copied, and counts there.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, Bytes};
use futures_util::future::{BoxFuture, FutureExt as _, Shared, WeakShared};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore},
    task::spawn_blocking,
    time::{Instant, timeout},
};

use crate::bounds::{Bound, Exceeded, MAX_PAGES};

/// The time in which clients can read a page before it is dropped for another one.
const LEAST_TIME: Duration = Duration::from_secs(1);

/// The part of a page that is copied at a time, in bytes.
const PART: usize = 16 << 10;

/// The pages of all ports.
#[derive(Clone)]
pub struct Pages(Arc<Shelf>);

struct Shelf {
    turn: Arc<Semaphore>,
    /// The pages that clients have not read, the oldest first.
    unread: Mutex<VecDeque<(Instant, Weak<RenderedPage>)>>,
    freed: Arc<Notify>,
    exceeded: Arc<Exceeded>,
}

pub(super) struct PageSource {
    shelf: Arc<Shelf>,
    render: Arc<dyn Fn() -> Vec<u8> + Send + Sync>,
    /// The rendering that has not begun: it shows everything that happened before a request for it.
    next: Mutex<Option<WeakShared<Rendering>>>,
    /// The bytes of the last page.
    size: AtomicUsize,
}

type Rendering = BoxFuture<'static, Option<Arc<RenderedPage>>>;

/// A rendered page. Its text is gone when it was dropped for another one.
#[derive(Debug)]
struct RenderedPage {
    text: Mutex<Option<Bytes>>,
    length: usize,
    freed: Arc<Notify>,
}

#[derive(Debug)]
struct PageBody {
    page: Option<Arc<RenderedPage>>,
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page was not read in time")]
struct DroppedPage;

// === impl Pages ===

impl Pages {
    /// Returns no pages. Counts in `exceeded` each one that is dropped because its clients do not read it.
    pub fn new(exceeded: Arc<Exceeded>) -> Self {
        Self(Arc::new(Shelf {
            turn: Arc::new(Semaphore::new(1)),
            unread: Mutex::default(),
            freed: Arc::default(),
            exceeded,
        }))
    }

    /// Renders on a thread that decides no requests: tens of thousands of rules take longer than a decision may wait.
    pub(super) fn source(&self, render: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Arc<PageSource> {
        Arc::new(PageSource {
            shelf: Arc::clone(&self.0),
            render: Arc::new(render),
            next: Mutex::default(),
            size: AtomicUsize::new(0),
        })
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

// === impl Shelf ===

impl Shelf {
    /// Waits until `bytes` more fit, or nothing else is there. Drops pages that clients could have read by now.
    async fn make_room(&self, bytes: usize) {
        loop {
            let Some(time) = self.time_to_room(bytes) else { return };
            // the pages may be read earlier
            let _ = timeout(time, self.freed.notified()).await;
        }
    }

    /// Drops the oldest pages as needed. Returns how long until the next one may be dropped; none if there is room.
    fn time_to_room(&self, bytes: usize) -> Option<Duration> {
        let mut unread = self.unread.lock();
        unread.retain(|(_, page)| page.strong_count() > 0);
        let length = |page: &Weak<RenderedPage>| page.upgrade().map_or(0, |page| page.length);
        let mut held: usize = unread.iter().map(|(_, page)| length(page)).sum();
        while held + bytes > MAX_PAGES
            && let Some((rendered, page)) = unread.front()
        {
            let time = LEAST_TIME.saturating_sub(rendered.elapsed());
            if time > Duration::ZERO {
                return Some(time);
            }
            if let Some(page) = page.upgrade() {
                held -= page.length;
                page.text.lock().take();
                self.exceeded.add(Bound::Pages);
            }
            unread.pop_front();
        }
        None
    }

    fn add(&self, text: Vec<u8>) -> Arc<RenderedPage> {
        let (length, freed) = (text.len(), Arc::clone(&self.freed));
        let page = Arc::new(RenderedPage { text: Mutex::new(Some(text.into())), length, freed });
        self.unread.lock().push_back((Instant::now(), Arc::downgrade(&page)));
        page
    }
}

// === impl PageSource ===

impl PageSource {
    /// Returns the page as of a time after this call. None if it cannot be rendered.
    pub(super) async fn get(self: &Arc<Self>) -> Option<Body> {
        let rendering = self.join();
        let page = rendering.await?;
        Some(Body::new(PageBody { page: (page.length > 0).then_some(page), at: 0 }))
    }

    fn join(self: &Arc<Self>) -> Shared<Rendering> {
        let mut next = self.next.lock();
        // weak: if all who wait for it go away, it must not keep its place in the queue
        if let Some(rendering) = next.as_ref().and_then(WeakShared::upgrade) {
            return rendering;
        }
        let rendering = Arc::clone(self).rendering().boxed().shared();
        *next = rendering.downgrade();
        rendering
    }

    async fn rendering(self: Arc<Self>) -> Option<Arc<RenderedPage>> {
        let turn = Arc::clone(&self.shelf.turn).acquire_owned().await.ok()?;
        self.shelf.make_room(self.size.load(Ordering::Relaxed)).await;
        // a request from now on needs a later page
        self.next.lock().take();
        let render = Arc::clone(&self.render);
        // the turn ends with the rendering, also if nobody waits for it any more
        let rendered = spawn_blocking(move || (render(), turn)).await;
        let (text, _turn) =
            rendered.inspect_err(|error| tracing::error!(%error, "cannot render a page")).ok()?;
        self.size.store(text.len(), Ordering::Relaxed);
        Some(self.shelf.add(text))
    }
}

// === impl RenderedPage ===

impl Drop for RenderedPage {
    fn drop(&mut self) {
        self.freed.notify_one();
    }
}

// === impl PageBody ===

impl http_body::Body for PageBody {
    type Data = Bytes;
    type Error = DroppedPage;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DroppedPage>>> {
        let Some(page) = &self.page else { return Poll::Ready(None) };
        let end = page.length.min(self.at + PART);
        // a copy, so that the page can be dropped while its connection waits
        let part = page.text.lock().as_ref().map(|text| Bytes::copy_from_slice(&text[self.at..end]));
        let is_last = end == page.length;
        self.at = end;
        if is_last || part.is_none() {
            self.page = None;
        }
        Poll::Ready(Some(part.map(Frame::data).ok_or(DroppedPage)))
    }

    fn is_end_stream(&self) -> bool {
        self.page.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.page.as_ref().map_or(0, |page| page.length - self.at);
        SizeHint::with_exact(rest as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use http_body_util::BodyExt as _;

    use super::*;

    fn pages() -> (Pages, Arc<Exceeded>) {
        let exceeded = Arc::<Exceeded>::default();
        (Pages::new(Arc::clone(&exceeded)), exceeded)
    }

    async fn read(body: Body) -> Result<Bytes, axum::Error> {
        body.collect().await.map(http_body_util::Collected::to_bytes)
    }

    /// Returns a source whose renderings wait for a message each, and count themselves. The page is the number.
    fn blocked(pages: &Pages) -> (Arc<PageSource>, mpsc::Sender<()>, Arc<AtomicUsize>) {
        let (go, wait) = mpsc::channel();
        let (wait, begun) = (Mutex::new(wait), Arc::<AtomicUsize>::default());
        let count = Arc::clone(&begun);
        let source = pages.source(move || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            wait.lock().recv().expect("the test goes on");
            number.to_string().into_bytes()
        });
        (source, go, begun)
    }

    async fn until(is_true: impl Fn() -> bool) {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn all_who_wait_for_a_page_share_one_that_is_rendered_after_their_request() {
        let (source, go, begun) = blocked(&pages().0);
        let get = |source: &Arc<PageSource>| {
            let source = Arc::clone(source);
            tokio::spawn(async move { read(source.get().await.expect("a page")).await.expect("its text") })
        };
        let first = get(&source);
        until(|| begun.load(Ordering::Relaxed) == 1).await;
        let others: Vec<_> = (0..100).map(|_| get(&source)).collect();
        until(|| source.next.lock().is_some()).await;
        for _ in 0..101 {
            go.send(()).expect("it waits");
        }
        assert_eq!(first.await.expect("no panic"), "0");
        for other in others {
            // some may come after the second rendering has begun
            let number: usize = std::str::from_utf8(&other.await.expect("no panic"))
                .expect("digits")
                .parse()
                .expect("a number");
            assert!((1..=3).contains(&number), "{number}");
        }
        assert!(begun.load(Ordering::Relaxed) <= 4);
    }

    #[tokio::test]
    async fn who_goes_away_keeps_no_place_in_the_queue_and_no_second_rendering_begins() {
        let (pages, _) = pages();
        let (source, go, begun) = blocked(&pages);
        let other = pages.source(|| b"other".to_vec());
        for _ in 0..3 {
            // the rendering has begun, and nobody waits for it
            assert!(timeout(Duration::from_millis(20), source.get()).await.is_err());
        }
        until(|| begun.load(Ordering::Relaxed) == 1).await;
        go.send(()).expect("it waits");
        assert_eq!(read(other.get().await.expect("a page")).await.expect("its text"), "other");
        assert_eq!(begun.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn pages_that_nobody_reads_are_dropped_for_others() {
        let (pages, exceeded) = pages();
        let source = pages.source(|| vec![b'x'; MAX_PAGES / 3]);
        let mut held = Vec::new();
        for _ in 0..5 {
            let mut body = source.get().await.expect("a page");
            body.frame().await.expect("a part").expect("its text");
            held.push(body);
        }
        let mut read_whole = Vec::new();
        for body in held {
            read_whole.push(read(body).await.map(|rest| rest.len()).ok());
        }
        let rest = Some(MAX_PAGES / 3 - PART);
        assert_eq!(read_whole, [None, None, rest, rest, rest]);
        assert_eq!(exceeded.get(Bound::Pages), 2);
        // those that were read take no room
        let begun = Instant::now();
        read(source.get().await.expect("a page")).await.expect("its text");
        assert_eq!(exceeded.get(Bound::Pages), 2, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn a_page_has_a_length_and_comes_in_parts() {
        let (pages, _) = pages();
        let text: Vec<u8> = (0..=255).cycle().take(2 * PART + 7).collect();
        let expected = text.clone();
        let mut body = pages.source(move || text.clone()).get().await.expect("a page");
        assert_eq!(http_body::Body::size_hint(&body).exact(), Some(expected.len() as u64));
        let mut parts = Vec::new();
        while let Some(frame) = body.frame().await {
            parts.push(frame.expect("a part").into_data().expect("data"));
        }
        assert_eq!(parts.iter().map(Bytes::len).collect::<Vec<_>>(), [PART, PART, 7]);
        assert_eq!(parts.concat(), expected);
        let empty = pages.source(Vec::new).get().await.expect("a page");
        assert!(http_body::Body::is_end_stream(&empty));
    }
}
