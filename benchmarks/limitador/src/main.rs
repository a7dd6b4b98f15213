//! A node of limitador's distributed mode: the counters of the library, with their gossip, behind
//! as much of HTTP as the attack of examples/regions speaks. There is no server of it on crates.io.
//!
//!     limitador-node NAME HTTP-ADDRESS GOSSIP-ADDRESS PEER-URL,PEER-URL LIMIT SECONDS

use std::collections::HashMap;
use std::sync::Arc;

use limitador::limit::{Context, Limit};
use limitador::storage::DistributedInMemoryStorage;
use limitador::RateLimiter;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

const NAMESPACE: &str = "shop";

// More threads than cores: the gossip may keep some of them.
#[tokio::main(worker_threads = 8)]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, http, gossip, peers, limit, seconds] = &args[..] else {
        panic!("NAME HTTP-ADDRESS GOSSIP-ADDRESS PEERS LIMIT SECONDS");
    };
    let peers = peers.split(',').map(str::to_owned).collect();
    let storage = DistributedInMemoryStorage::new(name.clone(), 1000, gossip.clone(), peers);
    let limiter = Arc::new(RateLimiter::new_with_storage(Box::new(storage)));
    let (limit, seconds) = (limit.parse().unwrap(), seconds.parse().unwrap());
    // Without variables: 0.14.0 panics when it hears of a key that it has not counted yet.
    let variables = Vec::<limitador::limit::Expression>::new();
    limiter.add_limit(Limit::new(NAMESPACE, limit, seconds, vec![], variables));
    let listener = TcpListener::bind(http).await.unwrap();
    loop {
        let (conn, _) = listener.accept().await.unwrap();
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let _ = answer(conn, &limiter).await;
        });
    }
}

/// Answers each request of a connection by a decision: 200 or 429.
async fn answer(conn: TcpStream, limiter: &RateLimiter) -> std::io::Result<()> {
    conn.set_nodelay(true)?;
    let mut conn = BufReader::new(conn);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        loop {
            line.clear();
            if conn.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let field = line.trim().to_ascii_lowercase();
            if field.is_empty() {
                break;
            }
            if let Some(n) = field.strip_prefix("content-length:") {
                length = n.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        conn.read_exact(&mut body).await?;
        let context: Context = HashMap::<String, String>::new().into();
        let refused = limiter
            .check_rate_limited_and_update(&NAMESPACE.into(), &context, 1)
            .map_or(true, |r| r.limited);
        let status = if refused { "429 Too Many Requests" } else { "200 OK" };
        conn.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await?;
    }
}
