//! Looks up records at the name servers of the system.

use std::{fs, io, net::SocketAddr, time::Duration};

use futures_util::future::join_all;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use super::{
    message::{DnsAnswer, MAX_ANSWER, Record, RecordKind, parse_answer, query},
    name::DnsName,
};

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// For a list of name servers: the longest wait for one answer, and how often each server is asked.
const TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 2;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NameServers {
    /// Those of `/etc/resolv.conf`, which is read for each look-up, with the domains that it searches.
    #[default]
    System,
    /// These, in their order.
    List(Vec<SocketAddr>),
}

#[derive(Debug, PartialEq, Eq)]
struct ResolverConfig {
    servers: Vec<SocketAddr>,
    search: Vec<String>,
    ndots: usize,
    timeout: Duration,
    attempts: usize,
}

/// Why a name has no records. The text is for people.
#[derive(Debug, PartialEq, Eq)]
struct LookUpError {
    text: String,
    /// A name server has answered, so that another name may be found.
    is_answered: bool,
}

/// Looks up records of all `kinds`: at least one record. The error is for people.
pub async fn look_up(
    name: &DnsName,
    kinds: &[RecordKind],
    name_servers: &NameServers,
) -> Result<Vec<Record>, String> {
    let config = match name_servers {
        NameServers::System => {
            // a few lines, which take no time
            let text = fs::read_to_string(RESOLV_CONF);
            ResolverConfig::parse(&text.map_err(|error| format!("cannot read {RESOLV_CONF}: {error}"))?)
        }
        NameServers::List(servers) => ResolverConfig {
            servers: servers.clone(),
            timeout: TIMEOUT,
            attempts: ATTEMPTS,
            ..ResolverConfig::default()
        },
    };
    look_up_at(name, kinds, &config).await
}

/// Tries the search domains too, until a name has records of any kind. A name that fails does not hide the next.
async fn look_up_at(
    name: &DnsName,
    kinds: &[RecordKind],
    config: &ResolverConfig,
) -> Result<Vec<Record>, String> {
    let mut failure = None;
    for candidate in name.candidates(&config.search, config.ndots) {
        let asked = join_all(kinds.iter().map(|kind| ask_any(config, &candidate, *kind))).await;
        // a name server may leave questions of one kind unanswered
        let is_unreachable = asked.iter().all(|asked| matches!(asked, Err(error) if !error.is_answered));
        let mut found = Vec::new();
        for asked in asked {
            match asked {
                Ok(records) => found.extend(records),
                Err(error) => drop(failure.get_or_insert(error.text)),
            }
        }
        if !found.is_empty() {
            return Ok(found);
        }
        if is_unreachable {
            break;
        }
    }
    Err(failure.unwrap_or_else(|| {
        let kinds: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        format!("{name} has no {} records", kinds.join(" or "))
    }))
}

async fn ask_any(
    config: &ResolverConfig,
    name: &DnsName,
    kind: RecordKind,
) -> Result<Vec<Record>, LookUpError> {
    let servers = &config.servers;
    let (mut error, mut is_answered) = (format!("{RESOLV_CONF} names no server"), false);
    for server in servers.iter().cycle().take(config.attempts * servers.len()) {
        let asked = timeout(config.timeout, ask(*server, name, kind)).await;
        is_answered |= matches!(asked, Ok(Ok(_)));
        error = match asked {
            Ok(Ok(DnsAnswer::Records(records))) => return Ok(records),
            Ok(Ok(DnsAnswer::Failed(code))) => format!("{server} fails with code {code}"),
            Ok(Ok(DnsAnswer::Truncated)) => format!("the answer of {server} is truncated"),
            Ok(Ok(DnsAnswer::Malformed)) => format!("the answer of {server} is malformed"),
            Ok(Err(error)) => format!("{server}: {error}"),
            Err(_) => format!("{server} does not answer"),
        };
    }
    Err(LookUpError { text: format!("cannot look up {name}: {error}"), is_answered })
}

/// Nobody else can predict it.
fn random_id() -> io::Result<u16> {
    let mut id = [0; 2];
    let filled = SystemRandom::new().fill(&mut id);
    filled.map(|()| u16::from_be_bytes(id)).map_err(|_| io::Error::other("the system has no random numbers"))
}

/// Over TCP if the answer is too long for a datagram.
async fn ask(server: SocketAddr, name: &DnsName, kind: RecordKind) -> io::Result<DnsAnswer> {
    let query = query(name, kind, random_id()?);
    let local: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(server).await?;
    socket.send(&query).await?;
    let mut message = vec![0; usize::from(MAX_ANSWER)];
    loop {
        let length = socket.recv(&mut message).await?;
        match parse_answer(&message[..length], &query, kind) {
            Some(DnsAnswer::Truncated) => break,
            Some(answer) => return Ok(answer),
            // not the answer to this query
            None => {}
        }
    }
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(query.len()).unwrap_or_default();
    stream.write_all(&[&length.to_be_bytes()[..], &query].concat()).await?;
    let length = stream.read_u16().await?;
    message.resize(usize::from(length), 0);
    stream.read_exact(&mut message).await?;
    // nothing else can arrive on this connection
    Ok(parse_answer(&message, &query, kind).unwrap_or(DnsAnswer::Malformed))
}

// === impl ResolverConfig ===

impl Default for ResolverConfig {
    fn default() -> Self {
        let timeout = Duration::from_secs(5);
        Self { servers: Vec::new(), search: Vec::new(), ndots: 1, timeout, attempts: 2 }
    }
}

impl ResolverConfig {
    /// Lines that are not understood have no effect, as in resolv.conf(5).
    fn parse(text: &str) -> Self {
        const PORT: u16 = 53;
        let mut config = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let address = words.next().and_then(|address| address.parse().ok());
                    config.servers.extend(address.map(|address| SocketAddr::new(address, PORT)));
                }
                // the last one applies
                Some("search" | "domain") => {
                    config.search = words.map(|domain| domain.trim_end_matches('.').to_owned()).collect();
                }
                Some("options") => words.for_each(|option| config.set(option)),
                _ => {}
            }
        }
        config
    }

    /// With the bounds of glibc. Options other than these have no effect.
    fn set(&mut self, option: &str) {
        let Some((name, Ok(number))) = option.split_once(':').map(|(name, text)| (name, text.parse::<u8>()))
        else {
            return;
        };
        match name {
            "ndots" => self.ndots = number.min(15).into(),
            "timeout" => self.timeout = Duration::from_secs(number.clamp(1, 30).into()),
            "attempts" => self.attempts = number.clamp(1, 5).into(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc};

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn name_servers_and_domains_are_read() {
        let text = "# made by the kubelet\nnameserver 10.96.0.10\nnameserver ::1\nnameserver fe80::x\n\
                    search a.svc.cluster.local svc.cluster.local.\noptions ndots:5\n";
        let config = ResolverConfig::parse(text);
        assert_eq!(config.servers, ["10.96.0.10:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
        assert_eq!(config.search, ["a.svc.cluster.local", "svc.cluster.local"]);
        assert_eq!((config.ndots, config.timeout, config.attempts), (5, Duration::from_secs(5), 2));
        let config =
            ResolverConfig::parse("options timeout:1 attempts:99 edns0 ndots:x\noptions rotate ndots:200\n");
        assert_eq!((config.ndots, config.timeout, config.attempts), (15, Duration::from_secs(1), 5));
        let config = ResolverConfig::parse("options timeout:0 attempts:0 ndots:0\n");
        assert_eq!((config.ndots, config.timeout, config.attempts), (0, Duration::from_secs(1), 1));
    }

    /// Starts a name server at which only the name `records` has a service; other queries fail.
    async fn name_server(records: &'static str) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
        let server = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let address = server.local_addr().expect("its address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let names = Arc::clone(&asked);
        tokio::spawn(async move {
            let mut query = [0; 512];
            loop {
                let (length, client) = server.recv_from(&mut query).await.expect("a query");
                let query = &query[..length];
                let question = &query[12..length - 11];
                // the first byte is a length, as are those between labels
                let name = question[1..question.len() - 5].iter();
                let name: String =
                    name.map(|byte| if *byte < b'-' { '.' } else { char::from(*byte) }).collect();
                let answer = if name == records {
                    let header = [query[0], query[1], 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
                    let record =
                        [0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60, 0, 9, 0, 0, 0, 0, 0x2b, 0xcb, 1, b'm', 0];
                    [&header[..], question, &record].concat()
                } else {
                    let header = [query[0], query[1], 0x81, 0x82, 0, 1, 0, 0, 0, 0, 0, 0];
                    [&header[..], question].concat()
                };
                names.lock().push(name);
                server.send_to(&answer, client).await.expect("it is sent");
            }
        });
        (address, asked)
    }

    #[tokio::test]
    async fn a_name_that_fails_does_not_hide_the_next_one() {
        let (address, asked) = name_server("_m._tcp.x.b").await;
        let config = ResolverConfig::parse("search a b c\noptions ndots:5 attempts:1\n");
        let config = ResolverConfig { servers: vec![address], ..config };
        let name = DnsName::parse("_m._tcp.x").expect("it is valid");
        assert_eq!(
            look_up_at(&name, &[RecordKind::Srv], &config).await,
            Ok(vec![Record::Service { host: "m".into(), port: 11_211 }])
        );
        assert_eq!(*asked.lock(), ["_m._tcp.x.a", "_m._tcp.x.b"]);
        let absolute = DnsName::parse("_m._tcp.x.").expect("it is valid");
        let error = look_up_at(&absolute, &[RecordKind::Srv], &config).await.expect_err("it fails");
        assert!(error.contains("fails with code 2"), "{error}");
        assert_eq!(asked.lock()[2..], ["_m._tcp.x"]);
    }

    /// Where a name has records of one kind, those of the other are not searched for elsewhere.
    #[tokio::test]
    async fn several_kinds_are_found_at_one_name() {
        let (address, asked) = name_server("_m._tcp.x.b").await;
        let config = ResolverConfig::parse("search a b c\noptions ndots:5 attempts:1\n");
        let config = ResolverConfig { servers: vec![address], ..config };
        let name = DnsName::parse("_m._tcp.x").expect("it is valid");
        let found = look_up_at(&name, &[RecordKind::A, RecordKind::Srv], &config).await.expect("one");
        assert_eq!(found.len(), 1);
        assert_eq!(*asked.lock(), ["_m._tcp.x.a", "_m._tcp.x.a", "_m._tcp.x.b", "_m._tcp.x.b"]);
        let absolute = DnsName::parse("_m._tcp.x.c.").expect("it is valid");
        let error = look_up_at(&absolute, &[RecordKind::A, RecordKind::Srv], &config).await;
        assert!(error.expect_err("none").contains("fails with code 2"));
    }

    #[tokio::test]
    async fn options_say_how_often_and_how_long_a_server_is_asked() {
        let (address, asked) = name_server("none").await;
        let silent = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let servers = vec![silent.local_addr().expect("its address"), address];
        let config = ResolverConfig { servers, ..ResolverConfig::parse("options timeout:1 attempts:3") };
        let name = DnsName::parse("_m._tcp.x").expect("it is valid");
        let error = look_up_at(&name, &[RecordKind::Srv], &config).await.expect_err("it fails");
        assert!(error.contains("fails with code 2"), "{error}");
        assert_eq!(asked.lock().len(), 3);
    }

    #[test]
    fn ids_differ() {
        let ids: BTreeSet<u16> = (0..100).map(|_| random_id().expect("an id")).collect();
        assert!(ids.len() > 50, "{}", ids.len());
    }

    #[tokio::test]
    async fn an_answer_of_a_name_server_is_found_and_stray_ones_are_ignored() {
        let server = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let address = server.local_addr().expect("its address");
        let answering = tokio::spawn(async move {
            let mut query = [0; 512];
            let (length, client) = server.recv_from(&mut query).await.expect("a query");
            let question = &query[12..length - 11];
            let answer = |id: [u8; 2]| {
                let header = [id[0], id[1], 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
                let record = [0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60, 0, 9, 0, 0, 0, 0, 0x2b, 0xcb, 1, b'm', 0];
                [&header[..], question, &record].concat()
            };
            for id in [[query[0] ^ 1, query[1]], [query[0], query[1]]] {
                server.send_to(&answer(id), client).await.expect("it is sent");
            }
        });
        let name = DnsName::parse("_memcache._tcp.example.org").expect("it is valid");
        let config = ResolverConfig { servers: vec![address], ..ResolverConfig::default() };
        let found = ask_any(&config, &name, RecordKind::Srv).await;
        assert_eq!(found, Ok(vec![Record::Service { host: "m".into(), port: 11_211 }]));
        answering.await.expect("it has answered");
    }

    #[tokio::test]
    async fn without_a_name_server_the_error_says_so() {
        let name = DnsName::parse("_memcache._tcp.example.org").expect("it is valid");
        let error = look_up_at(&name, &[RecordKind::Srv], &ResolverConfig::default())
            .await
            .expect_err("there is none");
        assert!(error.contains("names no server"), "{error}");
    }
}
