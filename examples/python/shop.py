import os

import psycopg

from batchline import Batchline

app = Batchline()


@app.operation
def send_receipt(address: str) -> str:
    return f"mail to {address}"


def buy(connection: psycopg.Connection, address: str) -> str:
    """The order and the mail about it: both or neither."""
    connection.execute("INSERT INTO orders (address) VALUES (%s)", [address])
    return app.sync.submit(send_receipt, [address], connection=connection).id


if __name__ == "__main__":
    with psycopg.connect(os.environ["BATCHLINE_DATABASE_URL"]) as connection:
        connection.execute("CREATE TABLE orders (address text NOT NULL)")
        connection.commit()
        buy(connection, "ann@example.com")
        connection.rollback()  # No order, no batch.
        batch_id = buy(connection, "bob@example.com")
        connection.commit()
    batch = app.sync.batch(batch_id)
    batch.wait()
    print([result.value for result in batch.results()])
