"""Charges a card once per order, and stores incoming orders once.

    shop_postgres.py charge ORDER CENTS
    shop_postgres.py receive ORDER BODY
"""

import json
import os
import sys

import psycopg


def charge(connection, order_id, cents):
    # The effect, the outgoing message and the memory of both commit together; an exception rolls all of it back.
    with connection.transaction():
        once = connection.execute("select oncebox.once('charge-card', %s)", [f"order-{order_id}"])
        if not once.fetchone()[0]:
            return "again"
        paid = json.dumps({"order_id": order_id, "cents": cents}).encode()
        connection.execute(
            "select oncebox.publish('order.paid', %s, key => %s, headers => %s)",
            [paid, order_id, json.dumps({"source": "python"})],
        )
        connection.execute("insert into charge (order_id, cents) values (%s, %s)", [order_id, cents])
        return "first"


def receive(connection, order_id, body):
    # A handler of a Rust runner does the work. Acknowledge to your source after the commit, never before it.
    with connection.transaction():
        answer = connection.execute(
            "select oncebox.receive('shop', %s, 'order.placed', %s, key => %s, headers => %s)",
            [f"order-{order_id}", body.encode(), order_id, json.dumps({"source": "python"})],
        )
        return answer.fetchone()[0]


if __name__ == "__main__":
    command, order, argument = sys.argv[1:]
    with psycopg.connect(os.environ["DATABASE_URL"]) as shop:
        print(charge(shop, order, int(argument)) if command == "charge" else receive(shop, order, argument))
