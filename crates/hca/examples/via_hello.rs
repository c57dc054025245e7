//! A message between two VIs: the first program of the VI Architecture.

use hca::via::{Discriminator, Error, MemAttributes, NetAddress, Nic, Request, Segment, ViAttributes};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nics = [Nic::open(&hca::open("loopback://via")?)?, Nic::open(&hca::open("loopback://via")?)?];
    let discriminator = Discriminator::new(b"hello")?;
    let listener = nics[1].listen(discriminator)?;
    let to = NetAddress { host: nics[1].attributes().host, discriminator };
    // Each side: memory, with a descriptor at 0 of the bytes at 64, and a VI.
    let [client, server] = [0, 1].map(|i| -> Result<_, Error> {
        let ptag = nics[i].create_ptag()?;
        let memory = nics[i].alloc(4096, &MemAttributes::new(&ptag))?;
        let descriptor = memory.descriptor(0)?;
        descriptor.write(&Request::new(&[Segment::new(&memory, 64, 5)]))?;
        Ok((memory, descriptor, nics[i].create_vi(&ViAttributes::new(&ptag), None, None)?))
    });
    let ((from, send, client), (into, receive, server)) = (client?, server?);
    server.post_recv(&receive)?;
    std::thread::scope(|s| {
        let asks = s.spawn(|| client.connect(discriminator, &to, None).map(drop));
        listener.wait(None)?.accept(&server)?;
        asks.join().expect("no panic")
    })?;
    from.write_at(64, b"hello");
    client.post_send(&send)?;
    let received = server.recv_wait(None)?;
    assert!(received.status.is_ok(), "the message is in the memory");
    println!("received {:?}", String::from_utf8(into.to_vec(64, 5))?);
    Ok(())
}
