// Charges a card once per order, and stores incoming orders once.
//
//     node shop_mariadb.js charge ORDER CENTS
//     node shop_mariadb.js receive ORDER BODY

const mysql = require("mysql2/promise");

async function inTransaction(connection, work) {
  for (;;) {
    await connection.beginTransaction();
    try {
      const result = await work();
      await connection.commit();
      return result;
    } catch (error) {
      await connection.rollback();
      // MariaDB undoes one of several transactions that wait for each other; that one begins again.
      if (error.code !== "ER_LOCK_DEADLOCK") throw error;
    }
  }
}

// The effect, the outgoing message and the memory of both commit together; an exception rolls all of it back.
function charge(connection, orderId, cents) {
  return inTransaction(connection, async () => {
    const [[once]] = await connection.execute("select oncebox.once('charge-card', ?) as first", [`order-${orderId}`]);
    if (!once.first) return "again";
    const paid = JSON.stringify({ order_id: orderId, cents });
    await connection.execute("select oncebox.publish('order.paid', ?, ?, null, ?, null)", [
      Buffer.from(paid),
      orderId,
      JSON.stringify({ source: "node" }),
    ]);
    await connection.execute("insert into charge (order_id, cents) values (?, ?)", [orderId, cents]);
    return "first";
  });
}

// A handler of a Rust runner does the work. Acknowledge to your source after the commit, never before it.
function receive(connection, orderId, body) {
  return inTransaction(connection, async () => {
    const [[row]] = await connection.execute("select oncebox.receive('shop', ?, 'order.placed', ?, ?, ?) as answer", [
      `order-${orderId}`,
      Buffer.from(body),
      orderId,
      JSON.stringify({ source: "node" }),
    ]);
    return row.answer;
  });
}

async function main([command, order, argument]) {
  const connection = await mysql.createConnection(process.env.DATABASE_URL);
  try {
    const charging = command === "charge";
    console.log(await (charging ? charge(connection, order, Number(argument)) : receive(connection, order, argument)));
  } finally {
    await connection.end();
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
