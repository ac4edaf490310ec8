//! The number of instances by DNS: limits are divided by the addresses that a name has now.

use weir_harness::local;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    sync::oneshot,
    time::{sleep, timeout},
};
use weir::{app::App, settings::Flags};
use weir_client::{Limiter, Permit};
use weir_limit::{Hits, Timestamp};
use weir_net::dns::{DnsSettings, NameServers};
use weir_store::clock::ManualClock;

/// A name server that says that a name has this many IPv4 addresses and none of IPv6; with none it fails.
async fn name_server(count: Arc<AtomicUsize>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
    let address = socket.local_addr().expect("its address");
    tokio::spawn(async move {
        let mut query = [0; 512];
        loop {
            let (length, client) = socket.recv_from(&mut query).await.expect("a query");
            let query = &query[..length];
            let question = &query[12..length - 11];
            let is_v4 = question[question.len() - 3] == 1;
            let count = u8::try_from(count.load(Relaxed)).expect("few");
            let (code, records) = if count == 0 { (0x82, 0) } else { (0x80, if is_v4 { count } else { 0 }) };
            let mut answer = vec![query[0], query[1], 0x81, code, 0, 1, 0, records, 0, 0, 0, 0];
            answer.extend_from_slice(question);
            for i in 0..records {
                answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 0, 0, i]);
            }
            socket.send_to(&answer, client).await.expect("it is sent");
        }
    });
    address
}

/// Returns how many hits are left, of which none is taken.
async fn left(address: SocketAddr) -> String {
    let body =
        r#"{"domain": "d", "hitsAddend": 0, "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}"#;
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let length = body.len();
    let request = format!(
        "POST /json HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.expect("it takes it");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    let of = |key: &str| {
        response.split_once(key).map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect())
    };
    of("\"requestsPerUnit\":").unwrap_or(response.clone())
}

async fn until_left(address: SocketAddr, expected: &str) {
    let reached = timeout(Duration::from_secs(20), async {
        while left(address).await != expected {
            sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(reached.await.is_ok(), "{expected} expected: {}", left(address).await);
}

#[tokio::test]
async fn a_limit_is_divided_by_the_addresses_of_a_name() {
    let dir = TempDir::new().expect("a directory");
    let rules = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {requests: 1200, per: 1h, coordination: split, \
                 instances: 'dns://weir.test.'}\n";
    std::fs::write(dir.path().join("rules.yaml"), rules).expect("a file");
    let flags = Flags { config: Some(dir.path().display().to_string()), ..Flags::default() };
    let count = Arc::new(AtomicUsize::new(0));
    let mut settings = local::settings(&flags, &[]);
    settings.rules.dns = DnsSettings {
        name_servers: NameServers::List(vec![name_server(Arc::clone(&count)).await]),
        refresh: Duration::from_millis(50),
    };
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_234_567_893)));
    let app = Box::pin(App::bind_with(settings, Arc::clone(&clock) as _)).await.expect("it starts");
    let address = app.addresses().http;
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(app.run(async move { drop(stopped.await) }));
    assert!(local::get(address, "/healthcheck").await.starts_with("HTTP/1.1 200"));
    // nothing is known yet
    until_left(address, "12").await;
    count.store(3, Relaxed);
    until_left(address, "400").await;
    count.store(4, Relaxed);
    until_left(address, "300").await;
    // a failure changes nothing, nor does a smaller number before the next ten seconds
    count.store(0, Relaxed);
    sleep(Duration::from_millis(200)).await;
    count.store(2, Relaxed);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(left(address).await, "300");
    clock.set(Timestamp::from_secs(1_234_567_900));
    until_left(address, "600").await;
    drop(stop);
    task.await.expect("it does not panic").expect("it stops");
}

/// A limiter in this process, whose counters are in memory.
#[tokio::test]
async fn a_program_divides_its_limits_by_the_addresses_of_names() {
    let count = Arc::new(AtomicUsize::new(3));
    let dns = DnsSettings {
        name_servers: NameServers::List(vec![name_server(Arc::clone(&count)).await]),
        refresh: Duration::from_millis(50),
    };
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_234_567_893)));
    let dir = TempDir::new().expect("a directory");
    let write = |name: &str, requests: u32| {
        let rules = format!(
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{requests: {requests}, per: 1h, coordination: split, \
             instances: 'dns://{name}.test.'}}\n"
        );
        std::fs::write(dir.path().join("rules.yaml"), rules).expect("a file");
    };
    write("weir", 1_200);
    let limiter = Limiter::builder().rules_dir(dir.path()).dns(dns).clock(Arc::clone(&clock) as _);
    let limiter = limiter.build().await.expect("valid rules");
    let fits = |hits| {
        let key = limiter.key("d", &[("k", "v")]).expect("a domain");
        key.try_acquire(Hits(hits)).map(Permit::give_back).is_ok()
    };
    let until_fits = async |most: u64| {
        let reached = timeout(Duration::from_secs(20), async {
            while fits(most + 1) || !fits(most) {
                sleep(Duration::from_millis(10)).await;
            }
        });
        assert!(reached.await.is_ok(), "at most {most} expected");
    };
    // looked up before the limiter is there
    assert!(fits(400) && !fits(401));
    count.store(4, Relaxed);
    until_fits(300).await;
    // in force at once, since the name is known
    write("weir", 2_400);
    limiter.reload().expect("valid rules");
    assert!(fits(600) && !fits(601));
    // the name is looked up first
    count.store(0, Relaxed);
    write("other", 10_000);
    limiter.reload().expect("valid rules");
    until_fits(100).await;
    count.store(5, Relaxed);
    until_fits(2_000).await;
    // rules without a name, and back
    std::fs::write(
        dir.path().join("rules.yaml"),
        "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {requests: 7, per: 1h}\n",
    )
    .expect("a file");
    limiter.reload().expect("valid rules");
    assert!(fits(7) && !fits(8));
    write("weir", 1_000);
    limiter.reload().expect("valid rules");
    until_fits(200).await;
}
