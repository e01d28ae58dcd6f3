import sys

from orders import Order, app, charge

count = int(sys.argv[1])
# Every thousandth order costs nothing.
orders = (Order(number, cents=number % 1000) for number in range(count))
batch = app.sync.submit(charge, orders, key=lambda order: f"order-{order.number}")
print(batch.id)
