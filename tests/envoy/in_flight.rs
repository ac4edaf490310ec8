//! The example of requests in flight, with the real Envoy: callers that are rejected, that wait for the answer, that leave
//! while their request is at the service, and that leave at once; upgraded connections, streams, retries and services that reset.

use std::{
    collections::HashSet,
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tempfile::TempDir;
use weir_testing::{redis_server, repository};

use crate::support::{
    Envoy, Stack,
    http::{self, HttpRequest},
    replace_once, wait,
    weir::Weir,
};

const LIMIT: usize = 8;

/// The requests that the service ends before a test does. The variable `IN_FLIGHT_ENDS` sets another number.
const ENDS: usize = 400;

/// How long the service takes for a request: from this time on, and less than twice as long.
const SHORTEST: Duration = Duration::from_millis(100);

/// Between two looks at all connections.
const PAUSE: Duration = Duration::from_micros(500);

/// As Envoy's configuration of the example, but for what the tests need.
struct Shop {
    // dropped in this order: the folder last, when no process uses it
    envoy: Envoy,
    weirs: Vec<Weir>,
    service: Arc<SlowService>,
    _folder: TempDir,
}

/// What the service has seen.
#[derive(Default)]
struct Seen {
    most: usize,
    ended: usize,
    /// Those of callers that leave, by their number.
    leaving: HashSet<usize>,
    /// The time that all requests have been there.
    busy: Duration,
}

/// A service that counts the requests that are at it at once. It resets one of eight.
struct SlowService {
    seen: Mutex<Seen>,
    arrived: Condvar,
    stops: AtomicBool,
}

/// A request at the service.
struct OpenRequest {
    stream: TcpStream,
    until: Instant,
    is_websocket: bool,
}

/// How a caller asks.
#[derive(Clone, Copy, Debug)]
enum Caller {
    Waits,
    /// Once the request is at the service.
    Leaves,
    /// At once: its reset may cross the answer of weir.
    LeavesAtOnce,
    WebSocket,
    /// Over HTTP/2, whose end it keeps open, as gRPC does.
    Stream,
}

/// What became of the requests of all callers.
#[derive(Debug, Default)]
struct Fates {
    rejected: AtomicUsize,
    left: AtomicUsize,
}

// === impl SlowService ===

impl SlowService {
    fn start() -> (SocketAddr, Arc<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket that does not block");
        let address = listener.local_addr().expect("its address");
        let service =
            Arc::new(Self { seen: Mutex::default(), arrived: Condvar::new(), stops: AtomicBool::new(false) });
        let running = Arc::clone(&service);
        thread::spawn(move || running.serve(&listener));
        (address, service)
    }

    /// One thread: whoever has left is gone before another is counted.
    fn serve(&self, listener: &TcpListener) {
        let mut idle: Vec<TcpStream> = Vec::new();
        let mut open: Vec<OpenRequest> = Vec::new();
        let mut looked = Instant::now();
        while !self.stops.load(Ordering::Relaxed) {
            while let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true).expect("a socket that does not block");
                idle.push(stream);
            }
            let mut began: Vec<(OpenRequest, Option<usize>)> = Vec::new();
            idle = idle.into_iter().filter_map(|stream| read(stream, &mut began)).collect();
            open.retain(|request| !has_left(&request.stream));
            let mut seen = self.seen.lock().expect("no panic");
            seen.busy += looked.elapsed() * u32::try_from(open.len()).expect("few");
            looked = Instant::now();
            for (request, leaving) in began {
                open.push(request);
                seen.leaving.extend(leaving);
            }
            seen.most = seen.most.max(open.len());
            self.arrived.notify_all();
            for mut request in open.extract_if(.., |request| request.until <= looked) {
                seen.ended += 1;
                // without an answer Envoy asks again
                let resets = seen.ended.is_multiple_of(8) || request.is_websocket;
                if !resets
                    && request.stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok()
                {
                    idle.push(request.stream);
                }
            }
            drop(seen);
            thread::park_timeout(PAUSE);
        }
    }

    /// Returns the most requests at once since the last call, and how many ended.
    fn seen(&self) -> (usize, usize) {
        let mut seen = self.seen.lock().expect("no panic");
        (std::mem::take(&mut seen.most), seen.ended)
    }
}

/// Returns the connection if no whole request is there; none if it is closed. A body has not begun.
fn read(mut stream: TcpStream, began: &mut Vec<(OpenRequest, Option<usize>)>) -> Option<TcpStream> {
    let mut buffer = [0; 4_096];
    match stream.peek(&mut buffer) {
        Ok(0) => None,
        Ok(length) => {
            let head = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if !head.ends_with("\r\n\r\n") {
                return Some(stream);
            }
            stream.read_exact(&mut buffer[..length]).expect("what is there");
            let leaving = head.lines().find_map(|line| line.strip_prefix("x-leaving: "));
            let leaving = leaving.map(|number| number.parse().expect("a number"));
            let is_websocket = head.contains("upgrade: websocket");
            if is_websocket {
                let _ = stream.write_all(
                    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
                );
            }
            let extra =
                SHORTEST.mul_f64(f64::from(stream.peer_addr().map_or(0, |peer| peer.port() % 64)) / 64.0);
            let until = Instant::now() + SHORTEST + extra;
            began.push((OpenRequest { stream, until, is_websocket }, leaving));
            None
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Some(stream),
        Err(_) => None,
    }
}

fn has_left(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

// === impl Shop ===

impl Shop {
    /// `rules` replaces the example's; `settings` are those of each of `instances`.
    fn start(instances: usize, rules: Option<&str>, settings: &[(&str, &str)]) -> Self {
        let (address, service) = SlowService::start();
        let folder = TempDir::new().expect("a folder");
        let mut config = repository("examples/envoy-in-flight/config");
        if let Some(rules) = rules {
            config = folder.path().join("config");
            fs::create_dir(&config).expect("a folder");
            fs::write(config.join("rules.yaml"), rules).expect("a file");
        }
        let weirs: Vec<Weir> = (0..instances)
            .map(|i| {
                let own = folder.path().join(i.to_string());
                fs::create_dir(&own).expect("a folder");
                Weir::start(&config, settings, &own)
            })
            .collect();
        let mut text =
            fs::read_to_string(repository("examples/envoy-in-flight/envoy.yaml")).expect("the bootstrap");
        let endpoint = |address: SocketAddr| {
            let (ip, port) = (address.ip(), address.port());
            format!(
                "- endpoint:\n                  address: {{ socket_address: {{ address: {ip}, port_value: {port} }} }}\n              "
            )
        };
        let own = format!("socket_address: {{ address: {}, port_value: {} }}", address.ip(), address.port());
        for (old, new) in [
            (
                "- endpoint:\n                  address: { socket_address: { address: 127.0.0.1, port_value: 8081 } }",
                &*weirs.iter().map(|weir| endpoint(weir.grpc)).collect::<String>(),
            ),
            ("envoy_internal_address: { server_listener_name: service }", &own),
            ("port_value: 9901 ", "port_value: 0 "),
            ("port_value: 10000 ", "port_value: 0 "),
            // a busy machine is no failure of weir, and a service that is killed lets nobody pass
            ("timeout: 0.05s", "timeout: 30s\n                      failure_mode_deny: true"),
            (
                "stat_prefix: shop\n",
                "stat_prefix: shop\n                upgrade_configs: [{ upgrade_type: websocket }]\n",
            ),
            // ends that go to an instance that was killed are lost
            (
                "- name: weir\n",
                "- name: weir\n      outlier_detection: { consecutive_gateway_failure: 1, base_ejection_time: 600s, max_ejection_percent: 50 }\n",
            ),
            (
                "route: { cluster: service }",
                "route: { cluster: service, retry_policy: { retry_on: reset, num_retries: 2 } }",
            ),
        ] {
            text = replace_once(&text, old, new);
        }
        let bootstrap = folder.path().join("envoy.yaml");
        fs::write(&bootstrap, text).expect("a file");
        let envoy = Envoy::with_workers(4, &bootstrap, folder.path());
        Self { envoy, weirs, service, _folder: folder }
    }

    /// Has `callers` ask until `is_over`.
    fn ask(&self, callers: usize, is_over: impl Fn() -> bool + Sync) -> Fates {
        let fates = Fates::default();
        thread::scope(|threads| {
            for number in 0..callers {
                let (fates, is_over) = (&fates, &is_over);
                threads.spawn(move || {
                    let mut turn = number;
                    while !is_over() {
                        turn += callers;
                        let caller = match (number % 8, turn / callers % 2) {
                            (0 | 4, _) => Caller::Leaves,
                            (1, 0) => Caller::LeavesAtOnce,
                            (2, _) => Caller::WebSocket,
                            (3, _) => Caller::Stream,
                            _ => Caller::Waits,
                        };
                        self.ask_as(caller, turn, fates);
                    }
                });
            }
        });
        fates
    }

    fn ask_as(&self, caller: Caller, number: usize, fates: &Fates) {
        let ask = HttpRequest::get("/").with("x-user", "acme");
        let connect = || TcpStream::connect(self.envoy.address).expect("Envoy listens");
        let status = match caller {
            Caller::Waits => Some(http::send(self.envoy.address, &ask).status),
            Caller::LeavesAtOnce => {
                connect().write_all(ask.to_wire().as_bytes()).expect("it takes it");
                None
            }
            Caller::Leaves => {
                let has_left = leave(connect(), &ask, number, &self.service);
                fates.left.fetch_add(has_left.into(), Ordering::Relaxed);
                (!has_left).then_some(429)
            }
            Caller::WebSocket => use_websocket(connect(), number),
            Caller::Stream => use_stream(self.envoy.address, number),
        };
        match status {
            None | Some(101 | 200) => {}
            // the service has reset the request, and those that Envoy has sent again; or no weir replies
            Some(429 | 500 | 503) => {
                fates.rejected.fetch_add(1, Ordering::Relaxed);
                // all of them in a loop would take the machine from those that are admitted
                thread::park_timeout(SHORTEST);
            }
            Some(other) => panic!("status {other} of {caller:?}"),
        }
    }

    /// Returns the metric of the rule at all instances together.
    fn metric(&self, name: &str) -> usize {
        self.weirs.iter().map(|weir| metric(weir, name)).sum()
    }

    fn wait_for_the_last_end(&self) {
        wait::until("every request has ended", || {
            let [started, ended, undone, given_up] = ["started", "ended", "undone", "given_up"]
                .map(|what| self.metric(&format!("weir_in_flight_{what}_total")));
            (started == ended + undone + given_up).then_some(())
        });
    }
}

/// Returns the status; none if the connection breaks. Every second caller leaves before the service closes it.
fn use_websocket(mut stream: TcpStream, number: usize) -> Option<u16> {
    let head = "GET / HTTP/1.1\r\nhost: test\r\nx-user: acme\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("it takes it");
    let mut head = [0; 12];
    stream.read_exact(&mut head).ok()?;
    let status = std::str::from_utf8(&head).ok()?.strip_prefix("HTTP/1.1 ")?.parse().ok()?;
    if status == 101 && number.is_multiple_of(2) {
        let _ = stream.read_to_end(&mut Vec::new());
    }
    Some(status)
}

/// Returns the status; none if the stream breaks. Every second caller leaves before.
fn use_stream(envoy: SocketAddr, number: usize) -> Option<u16> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(envoy).await.expect("Envoy listens");
        let (mut client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
        drop(tokio::spawn(connection));
        let request = hyper::Request::post("http://test/").header("x-user", "acme");
        let (answer, mut body) = client.send_request(request.body(()).expect("a request"), false).ok()?;
        let patience = if number.is_multiple_of(2) { SHORTEST } else { SHORTEST * 50 };
        let answered = tokio::time::timeout(patience, answer).await;
        if answered.is_ok() {
            let _ = body.send_data(Bytes::new(), true);
        }
        // the connection closes with the runtime
        Some(answered.ok()?.ok()?.status().as_u16())
    })
}

fn metric(weir: &Weir, name: &str) -> usize {
    let page = http::send(weir.http, &HttpRequest::get("/metrics")).body;
    let line = page.lines().find(|line| line.starts_with(&format!("{name}{{")));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
}

fn ends() -> usize {
    #[expect(clippy::disallowed_methods, reason = "it sets the test, not weir")]
    let number = std::env::var("IN_FLIGHT_ENDS");
    number.ok().and_then(|number| number.parse().ok()).unwrap_or(ENDS)
}

#[test]
fn never_more_than_the_limit_are_at_the_service() {
    let shop = Shop::start(1, None, &[]);
    let begun = Instant::now();
    let fates = shop.ask(200, || shop.service.seen.lock().expect("no panic").ended >= ends());
    let mean = shop.service.seen.lock().expect("no panic").busy.div_duration_f64(begun.elapsed());
    let (most, ended) = shop.service.seen();
    println!("{ended} requests in {:?}, {mean:.2} at once on average, {fates:?}", begun.elapsed());
    assert_eq!(most, LIMIT, "{fates:?}");
    assert!(fates.rejected.into_inner() > 0 && fates.left.into_inner() > 0);
    shop.wait_for_the_last_end();
    assert_eq!(shop.metric("weir_in_flight"), 0);
    assert_eq!(shop.metric("weir_in_flight_given_up_total") + shop.metric("weir_in_flight_unknown_total"), 0);
    shop.service.stops.store(true, Ordering::Relaxed);
}

/// Redis stops for 5 seconds, and then one of the instances is killed.
#[test]
fn two_instances_share_the_limit_through_failures() {
    let redis = redis_server::Server::start();
    let url = format!("127.0.0.1:{}", redis.port());
    // on a busy machine, too, the store decides
    let settings = [("BACKEND_TYPE", "redis"), ("REDIS_URL", &*url), ("WEIR_DECISION_BUDGET", "1s")];
    let rules = "domain: shop\ndescriptors: [{key: user, rate_limit: {in_flight: 8, give_up_after: 3s}}]";
    let mut shop = Shop::start(2, Some(rules), &settings);
    let ask = |shop: &Shop, part: usize| {
        let before = shop.service.seen().1;
        shop.ask(100, || shop.service.seen.lock().expect("no panic").ended >= before + ends() / part)
    };
    ask(&shop, 3);
    assert_eq!(shop.service.seen().0, LIMIT, "both work");
    redis.signal("STOP");
    let begun = Instant::now();
    let fates = shop.ask(100, || begun.elapsed() >= Duration::from_secs(5));
    let (most, _) = shop.service.seen();
    println!("without Redis {most} at once, {fates:?}");
    redis.signal("CONT");
    ask(&shop, 3);
    let (after, _) = shop.service.seen();
    println!("{after} at once when it is back");
    // those whose replies came late
    assert!((1..=LIMIT + 2).contains(&most) && after <= LIMIT + 2, "{most} without Redis, then {after}");
    shop.weirs[1].kill();
    let killed = shop.weirs.pop();
    ask(&shop, 3);
    assert!(shop.service.seen().0 <= LIMIT);
    drop(killed);
    shop.service.stops.store(true, Ordering::Relaxed);
}

/// Of an Envoy that stops, some requests never end.
#[test]
fn places_are_free_again_after_envoy_has_stopped() {
    let rules = "domain: shop\ndescriptors: [{key: user, rate_limit: {in_flight: 100, give_up_after: 3s}}]";
    let shop = Shop::start(1, Some(rules), &[]);
    let ask = HttpRequest::get("/").with("x-user", "acme").with("upgrade", "websocket");
    let open: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(shop.envoy.address).expect("Envoy listens");
            stream.write_all(ask.to_wire().as_bytes()).expect("it takes it");
            stream
        })
        .collect();
    wait::until("all have begun", || (shop.metric("weir_in_flight_started_total") == 100).then_some(()));
    shop.envoy.terminate();
    drop(open);
    wait::until("all places are free", || (shop.metric("weir_in_flight") == 0).then_some(()));
    shop.service.stops.store(true, Ordering::Relaxed);
}

/// With the service inside of Envoy, as users try it first.
#[test]
fn the_example_needs_no_other_service() {
    let stack = Stack::from_example_with(
        "examples/envoy-in-flight/config",
        "examples/envoy-in-flight/envoy.yaml",
        &[],
        |text| replace_once(&text, "fixed_delay: 5s", "fixed_delay: 0.01s"),
    );
    let response = stack.get_with("x-user", "acme");
    assert_eq!((response.status, &*response.body), (200, "done\n"));
    wait::until("the request has ended", || {
        (metric(&stack.weir, "weir_in_flight_ended_total") == 1).then_some(())
    });
}

/// Asks, and leaves once the request is at the service. Returns false if it is rejected.
fn leave(mut stream: TcpStream, request: &HttpRequest, number: usize, service: &SlowService) -> bool {
    let request = request.clone().with("x-leaving", &number.to_string());
    stream.write_all(request.to_wire().as_bytes()).expect("it takes it");
    stream.set_nonblocking(true).expect("a socket that does not block");
    let mut seen = service.seen.lock().expect("no panic");
    loop {
        if seen.leaving.contains(&number) {
            return true;
        }
        // an answer without the service is a rejection
        if !matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock) {
            return false;
        }
        seen = service.arrived.wait_timeout(seen, SHORTEST).expect("no panic").0;
    }
}
