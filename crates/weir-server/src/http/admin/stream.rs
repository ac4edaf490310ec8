//! `GET /v1/stream`: server-sent events, one a second and topic. All who listen to a topic share the last event of it: who
//! reads slowly misses events, and memory holds one for each topic.

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::{Body, Bytes},
    extract::State,
    http::{Uri, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use futures_util::{FutureExt as _, future::select_all, stream};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{sync::watch, time::timeout};
use weir_observe::{hot_keys::By, text::escaped_json};
use weir_store::Store;

use super::{
    api::AdminApi,
    attention,
    fleet::KnownFleet,
    hot, instance,
    permission::AdminCaller,
    problem::Problem,
    query::{ListPart, Query},
    rules,
};

const MOST_STREAMS: usize = 32;

const MOST_OF_ONE: usize = 4;

/// The time without an event after which a comment shows that the stream lives.
const QUIET: Duration = Duration::from_secs(15);

named! {
    pub(super) enum Topic {
        Instance = "instance",
        Instances = "instances",
        Attention = "attention",
        Rules = "rules",
        Hot = "hot",
        HotRejected = "hot_rejected",
    }
}

/// The last event of each topic.
#[derive(Debug)]
pub(super) struct Hub {
    topics: Vec<watch::Sender<Bytes>>,
    /// Becomes true when the process stops: streams would hold it up.
    closed: watch::Sender<bool>,
    /// The streams of each caller.
    streams: Arc<Mutex<HashMap<String, usize>>>,
}

/// A stream's place among those of its caller.
struct StreamPlace {
    caller: String,
    streams: Arc<Mutex<HashMap<String, usize>>>,
}

struct Listening {
    topics: Vec<watch::Receiver<Bytes>>,
    closed: watch::Receiver<bool>,
    _place: StreamPlace,
}

pub(super) async fn get<S: Store>(
    State(api): State<Arc<AdminApi<S>>>,
    Extension(caller): Extension<AdminCaller>,
    uri: Uri,
) -> Result<Response, Problem> {
    let query = Query::parse(&uri, &["topics"])?;
    let topics = topics(query.get("topics").unwrap_or_default())?;
    let place = api.hub.enter(&caller)?;
    let topics = topics.into_iter().map(|topic| api.hub.listen(topic)).collect();
    let listening = Listening { topics, closed: api.hub.closed.subscribe(), _place: place };
    let events = stream::unfold(listening, async |mut listening| {
        let events = listening.next().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(events), listening))
    });
    Ok(([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response())
}

fn topics(text: &str) -> Result<Vec<Topic>, Problem> {
    let mut topics = Vec::new();
    for name in text.split(',') {
        let Some(topic) = Topic::ALL.iter().find(|topic| topic.name() == name) else {
            let names = Topic::ALL.iter().map(|topic| topic.name()).collect::<Vec<_>>().join(", ");
            let detail = format!("topics has '{name}'; write some of {names}, with commas between them.");
            return Err(Problem::malformed(detail));
        };
        if !topics.contains(topic) {
            topics.push(*topic);
        }
    }
    Ok(topics)
}

// === impl AdminApi ===

impl<S: Store> AdminApi<S> {
    /// The data of an event. There is no `fleet` if instances tell nothing of themselves.
    pub(super) fn event(&self, topic: Topic, fleet: Option<&KnownFleet>) -> Value {
        match topic {
            Topic::Instance => instance::instance(self),
            Topic::Instances => super::instances(self, fleet, ListPart::ALL),
            Topic::Attention => attention::event(self),
            Topic::Rules => rules::rates(self),
            Topic::Hot => hot::event(self, By::Hits, fleet),
            Topic::HotRejected => hot::event(self, By::Rejections, fleet),
        }
    }
}

// === impl Topic ===

impl Topic {
    /// Whether other instances matter.
    pub(super) const fn is_of_fleet(self) -> bool {
        matches!(self, Self::Instances | Self::Hot | Self::HotRejected)
    }
}

// === impl Hub ===

impl Default for Hub {
    fn default() -> Self {
        let topics = Topic::ALL.iter().map(|_| watch::Sender::new(Bytes::new())).collect();
        Self { topics, closed: watch::Sender::new(false), streams: Arc::default() }
    }
}

impl Hub {
    pub(super) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Returns the topics that somebody listens to.
    pub(super) fn asked(&self) -> Vec<Topic> {
        let is_asked = |topic: &Topic| self.topics[*topic as usize].receiver_count() > 0;
        Topic::ALL.iter().copied().filter(is_asked).collect()
    }

    /// Replaces the last event of `topic`, unless it is the same.
    pub(super) fn send(&self, topic: Topic, data: &str) {
        let event = format!("event: {}\ndata: {}\n\n", topic.name(), escaped_json(data));
        self.topics[topic as usize].send_if_modified(|last| {
            let is_new = *last != event.as_bytes();
            if is_new {
                *last = event.into();
            }
            is_new
        });
    }

    /// Begins with an event as soon as there is a new one.
    fn listen(&self, topic: Topic) -> watch::Receiver<Bytes> {
        let sender = &self.topics[topic as usize];
        let is_first = sender.receiver_count() == 0;
        let mut receiver = sender.subscribe();
        if is_first {
            // what is there is of the last listener
            receiver.mark_unchanged();
        } else {
            receiver.mark_changed();
        }
        receiver
    }

    fn enter(&self, caller: &AdminCaller) -> Result<StreamPlace, Problem> {
        let mut streams = self.streams.lock();
        let caller = format!("{:?} {}", caller.proof, caller.name);
        let (all, own) = (streams.values().sum::<usize>(), streams.get(&caller).copied().unwrap_or_default());
        if all >= MOST_STREAMS {
            return Err(Problem::too_many(format!("There are {MOST_STREAMS} streams already."), 5));
        }
        if own >= MOST_OF_ONE {
            let detail = format!("You have {MOST_OF_ONE} streams already; close one of them.");
            return Err(Problem::too_many(detail, 5));
        }
        streams.insert(caller.clone(), own + 1);
        Ok(StreamPlace { caller, streams: Arc::clone(&self.streams) })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut streams = self.streams.lock();
        if let Some(own) = streams.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                streams.remove(&self.caller);
            }
        }
    }
}

// === impl Listening ===

impl Listening {
    /// Waits for events, and returns all that there are. None when the process stops.
    async fn next(&mut self) -> Option<Bytes> {
        let mut closed = self.closed.clone();
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => None,
            events = self.events() => Some(events),
        }
    }

    async fn events(&mut self) -> Bytes {
        loop {
            let changed = select_all(self.topics.iter_mut().map(|topic| topic.changed().boxed()));
            let changed = timeout(QUIET, changed).await.map(|(changed, first, _)| changed.map(|()| first));
            match changed {
                Err(_) => return Bytes::from_static(b":\n\n"),
                // the process stops
                Ok(Err(_)) => std::future::pending().await,
                Ok(Ok(first)) => {
                    let mut events = self.topics[first].borrow_and_update().to_vec();
                    for topic in &mut self.topics {
                        if topic.has_changed().unwrap_or_default() {
                            events.extend_from_slice(&topic.borrow_and_update());
                        }
                    }
                    if !events.is_empty() {
                        return events.into();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_that_is_slow_gets_the_last_event_of_a_topic_and_none_is_kept_for_it() {
        let hub = Hub::default();
        let mut listening = Listening {
            topics: vec![hub.listen(Topic::Instance), hub.listen(Topic::Rules)],
            closed: hub.closed.subscribe(),
            _place: StreamPlace { caller: "nobody".to_owned(), streams: Arc::clone(&hub.streams) },
        };
        for i in 0..1_000 {
            hub.send(Topic::Instance, &format!("{{\"i\": {i}}}"));
            hub.send(Topic::Rules, &format!("{{\"r\": {i}}}"));
        }
        let events = listening.next().await.expect("events");
        let text = String::from_utf8_lossy(&events);
        assert_eq!(text.matches("event: ").count(), 2, "{text}");
        assert!(text.contains("{\"i\": 999}") && text.contains("{\"r\": 999}"), "{text}");
    }
}
