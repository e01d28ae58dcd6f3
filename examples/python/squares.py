from batchline import Batchline

app = Batchline()


@app.operation
async def square(number: int) -> int:
    return number * number


if __name__ == "__main__":
    print(app.map(square, range(5)))
