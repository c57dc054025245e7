//! A request and its reply: the first program of Active Messages.

use hca::am::{Bundle, Tag, Way};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let open = || -> Result<Bundle, Box<dyn std::error::Error>> {
        Ok(Bundle::open(&hca::open("loopback://am")?, Way::Verbs)?)
    };
    let (mut client, mut server) = (open()?, open()?);
    // The server squares numbers, for those that know its tag.
    let squares = server.endpoint()?;
    server.set_tag(squares, Tag(7))?;
    server.set_handler(squares, 1, |message, token| {
        token.reply(1, &[message.arg(0) * message.arg(0)]).expect("the client is there");
    })?;
    let asks = client.endpoint()?;
    let (tell, told) = std::sync::mpsc::channel();
    client.set_handler(asks, 1, move |message, _| tell.send(message.arg(0)).expect("main is there"))?;
    client.map(asks, 0, &server.name(squares)?, Tag(7))?;
    client.request(asks, 0, 1, &[12])?;
    while client.outstanding(asks, 0)? > 0 {
        server.poll()?;
        client.poll()?;
    }
    println!("12 squared is {}", told.recv()?);
    Ok(())
}
