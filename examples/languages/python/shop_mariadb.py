"""Charges a card once per order, and stores incoming orders once.

    shop_mariadb.py charge ORDER CENTS
    shop_mariadb.py receive ORDER BODY
"""

import json
import os
import sys
from urllib.parse import urlsplit

import pymysql


DEADLOCK = 1213


def in_transaction(connection, work):
    while True:
        connection.begin()
        try:
            with connection.cursor() as cursor:
                result = work(cursor)
            connection.commit()
            return result
        except BaseException as error:
            connection.rollback()
            # MariaDB undoes one of several transactions that wait for each other; that one begins again.
            if not isinstance(error, pymysql.OperationalError) or error.args[0] != DEADLOCK:
                raise


def charge(connection, order_id, cents):
    # The effect, the outgoing message and the memory of both commit together; an exception rolls all of it back.
    def work(cursor):
        cursor.execute("select oncebox.once('charge-card', %s)", [f"order-{order_id}"])
        if not cursor.fetchone()[0]:
            return "again"
        paid = json.dumps({"order_id": order_id, "cents": cents}).encode()
        cursor.execute(
            "select oncebox.publish('order.paid', %s, %s, null, %s, null)",
            [paid, order_id, json.dumps({"source": "python"})],
        )
        cursor.execute("insert into charge (order_id, cents) values (%s, %s)", [order_id, cents])
        return "first"

    return in_transaction(connection, work)


def receive(connection, order_id, body):
    # A handler of a Rust runner does the work. Acknowledge to your source after the commit, never before it.
    def work(cursor):
        cursor.execute(
            "select oncebox.receive('shop', %s, 'order.placed', %s, %s, %s)",
            [f"order-{order_id}", body.encode(), order_id, json.dumps({"source": "python"})],
        )
        return cursor.fetchone()[0]

    return in_transaction(connection, work)


if __name__ == "__main__":
    command, order, argument = sys.argv[1:]
    url = urlsplit(os.environ["DATABASE_URL"])
    with pymysql.connect(
        host=url.hostname,
        port=url.port or 3306,
        user=url.username,
        password=url.password or "",
        database=url.path.strip("/"),
    ) as shop:
        print(charge(shop, order, int(argument)) if command == "charge" else receive(shop, order, argument))
