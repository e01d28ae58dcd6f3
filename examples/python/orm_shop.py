import os

import psycopg
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from batchline import Batchline

app = Batchline()


@app.operation
def send_receipt(address: str) -> str:
    return f"mail to {address}"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orm_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    address: Mapped[str]


def buy(session: Session, address: str) -> str:
    session.add(Order(address=address))
    return app.sync.submit(send_receipt, [address], connection=session).id


if __name__ == "__main__":
    url = os.environ["BATCHLINE_DATABASE_URL"]
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        buy(session, "ann@example.com")
        session.rollback()  # No order, no batch.
        batch_id = buy(session, "bob@example.com")
        session.commit()
    engine.dispose()
    batch = app.sync.batch(batch_id)
    batch.wait()
    print([result.value for result in batch.results()])
