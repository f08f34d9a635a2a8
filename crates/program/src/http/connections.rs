//! Connections, so many at a time and each for so long.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// A listener that accepts a connection when there is room for it; the others wait in the kernel.
pub(super) struct Bounded {
    listener: TcpListener,
    room: Arc<Semaphore>,
    lifetime: Duration,
}

impl Bounded {
    /// At most `count` connections at a time, which end after `lifetime` whatever they do: whoever says nothing, or
    /// reads nothing, does not keep others out.
    pub(super) fn new(listener: TcpListener, count: usize, lifetime: Duration) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(count)), lifetime }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let room = Arc::clone(&self.room).acquire_owned().await;
        let room = room.expect("the semaphore is never closed");
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        (Connection { stream, end: Box::pin(sleep(self.lifetime)), _room: room }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when its time is over.
pub(super) struct Connection {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _room: OwnedSemaphorePermit,
}

impl Connection {
    /// Goes on with the stream while there is time.
    fn while_alive<T>(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        go_on: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let this = self.get_mut();
        match go_on(Pin::new(&mut this.stream), context) {
            Poll::Ready(result) if Instant::now() < this.end.deadline() => Poll::Ready(result),
            _ => {
                ready!(this.end.as_mut().poll(context));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.while_alive(context, |stream, context| stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.while_alive(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.while_alive(context, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.while_alive(context, |stream, context| stream.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(connection: &mut Connection) -> io::Result<()> {
        let mut bytes = [0; 16];
        let mut buffer = ReadBuf::new(&mut bytes);
        std::future::poll_fn(|context| Pin::new(&mut *connection).poll_read(context, &mut buffer)).await
    }

    #[test]
    fn connections_have_room_and_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let mut bounded = Bounded::new(listener, 1, Duration::from_millis(20));
            let address = bounded.local_addr().unwrap();
            let _clients =
                [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
            let (mut first, _) = bounded.accept().await;
            let mut second = Box::pin(bounded.accept());
            let mut context = Context::from_waker(std::task::Waker::noop());
            assert!(second.as_mut().poll(&mut context).is_pending(), "there is no room");
            // The client says nothing.
            let error = read(&mut first).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(first);
            second.await;
        });
    }
}
