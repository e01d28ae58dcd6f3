import time
from dataclasses import dataclass

from batchline import Batchline, Fail

app = Batchline()


@dataclass
class Order:
    number: int
    cents: int


@app.operation(max_attempts=3, timeout=30)
def charge(order: Order) -> str:
    if order.cents <= 0:
        raise Fail("there is nothing to pay", code="nothing_to_pay")
    time.sleep(0.02)  # Stands for a call of another system.
    return f"receipt {order.number}"
