// Charges a card once per order, and stores incoming orders once.
//
//     node shop_postgres.js charge ORDER CENTS
//     node shop_postgres.js receive ORDER BODY

const { Client } = require("pg");

async function inTransaction(client, work) {
  await client.query("begin");
  try {
    const result = await work();
    await client.query("commit");
    return result;
  } catch (error) {
    await client.query("rollback");
    throw error;
  }
}

// The effect, the outgoing message and the memory of both commit together; an exception rolls all of it back.
function charge(client, orderId, cents) {
  return inTransaction(client, async () => {
    const once = await client.query("select oncebox.once('charge-card', $1) as first", [`order-${orderId}`]);
    if (!once.rows[0].first) return "again";
    const paid = JSON.stringify({ order_id: orderId, cents });
    await client.query("select oncebox.publish('order.paid', $1, key => $2, headers => $3)", [
      paid,
      orderId,
      JSON.stringify({ source: "node" }),
    ]);
    await client.query("insert into charge (order_id, cents) values ($1, $2)", [orderId, cents]);
    return "first";
  });
}

// A handler of a Rust runner does the work. Acknowledge to your source after the commit, never before it.
// The cast is for a Buffer: pg sends its bytes without saying what they are.
function receive(client, orderId, body) {
  return inTransaction(client, async () => {
    const answer = await client.query(
      "select oncebox.receive('shop', $1, 'order.placed', $2::bytea, key => $3, headers => $4) as answer",
      [`order-${orderId}`, Buffer.from(body), orderId, JSON.stringify({ source: "node" })],
    );
    return answer.rows[0].answer;
  });
}

async function main([command, order, argument]) {
  const client = new Client({ connectionString: process.env.DATABASE_URL });
  await client.connect();
  try {
    const shop = command === "charge" ? charge(client, order, Number(argument)) : receive(client, order, argument);
    console.log(await shop);
  } finally {
    await client.end();
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
