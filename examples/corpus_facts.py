"""Tables of simple facts for the synthetic corpus, with many wordings of every question.

Pairs are written as ``key=value`` separated by commas, one table per kind of fact. Templates
may use ``{k}`` and ``{v}`` (the pair), ``{K}`` and ``{V}`` (capitalised) and ``{ak}`` and
``{av}`` (with "a" or "an" in front).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class FactTable:
    """One kind of fact: its pairs, the ways to ask for the value, and the answer."""

    name: str
    pairs: str
    questions: tuple[str, ...]
    answer: str


def parse_pairs(text: str) -> list[tuple[str, str]]:
    """Split ``"a=b, c=d"`` into ``[("a", "b"), ("c", "d")]``."""
    items = (item.split("=") for item in text.replace("\n", " ").split(",") if item.strip())
    return [(key.strip(), value.strip()) for key, value in items]


def parse_words(text: str) -> list[str]:
    """Split ``"a, b, c"`` into a list of stripped words."""
    return [word.strip() for word in text.replace("\n", " ").split(",") if word.strip()]


CAPITALS = """France=Paris, Germany=Berlin, Italy=Rome, Spain=Madrid, Portugal=Lisbon,
Greece=Athens, Austria=Vienna, Belgium=Brussels, Denmark=Copenhagen, Norway=Oslo,
Sweden=Stockholm, Finland=Helsinki, Poland=Warsaw, Hungary=Budapest, Ireland=Dublin,
Iceland=Reykjavik, England=London, Scotland=Edinburgh, Wales=Cardiff, Switzerland=Bern,
Russia=Moscow, Ukraine=Kyiv, Turkey=Ankara, Egypt=Cairo, Morocco=Rabat, Kenya=Nairobi,
Ghana=Accra, Nigeria=Abuja, Ethiopia=Addis Ababa, Japan=Tokyo, China=Beijing, India=New Delhi,
Nepal=Kathmandu, Thailand=Bangkok, Vietnam=Hanoi, Canada=Ottawa, Mexico=Mexico City,
Cuba=Havana, Brazil=Brasilia, Argentina=Buenos Aires, Chile=Santiago, Peru=Lima,
Colombia=Bogota, Australia=Canberra, New Zealand=Wellington, Romania=Bucharest,
Bulgaria=Sofia, Croatia=Zagreb, Serbia=Belgrade, Slovenia=Ljubljana, Estonia=Tallinn,
Latvia=Riga, Lithuania=Vilnius, Czechia=Prague, Slovakia=Bratislava, Iran=Tehran, Iraq=Baghdad,
Jordan=Amman, Senegal=Dakar, Uganda=Kampala, Mongolia=Ulaanbaatar, Indonesia=Jakarta,
Malta=Valletta, Cyprus=Nicosia, South Korea=Seoul, the United States=Washington"""

CONTINENTS = """France=Europe, Germany=Europe, Italy=Europe, Spain=Europe, Portugal=Europe,
Greece=Europe, Norway=Europe, Sweden=Europe, Poland=Europe, Ireland=Europe, Egypt=Africa,
Morocco=Africa, Kenya=Africa, Ghana=Africa, Nigeria=Africa, Senegal=Africa, Japan=Asia,
China=Asia, India=Asia, Nepal=Asia, Thailand=Asia, Vietnam=Asia, Mongolia=Asia,
Canada=North America, Mexico=North America, Cuba=North America, Brazil=South America,
Argentina=South America, Chile=South America, Peru=South America, Colombia=South America"""

YOUNG = """dog=puppy, cat=kitten, cow=calf, horse=foal, sheep=lamb, goat=kid, pig=piglet,
hen=chick, duck=duckling, goose=gosling, bear=cub, lion=cub, fox=cub, deer=fawn, frog=tadpole,
swan=cygnet, owl=owlet, eagle=eaglet, kangaroo=joey, butterfly=caterpillar, elephant=calf"""

SOUNDS = """dog=barks, cat=meows, cow=moos, horse=neighs, sheep=bleats, pig=grunts, hen=clucks,
duck=quacks, lion=roars, wolf=howls, owl=hoots, bee=buzzes, snake=hisses, mouse=squeaks,
frog=croaks, crow=caws, donkey=brays, elephant=trumpets, bird=sings"""

ANIMAL_HOMES = """bee=hive, bird=nest, spider=web, dog=kennel, horse=stable, pig=sty,
fox=den, rabbit=burrow, ant=anthill, lion=den, hen=coop, cow=barn, fish=pond, bear=cave,
owl=hollow tree, mouse=hole, sheep=fold, beaver=lodge"""

DIETS = """cow=grass, horse=hay, panda=bamboo, rabbit=carrots, squirrel=nuts, monkey=bananas,
bear=fish and berries, lion=meat, owl=mice, cat=fish, bee=nectar, frog=flies, bird=seeds,
koala=leaves, pig=potatoes, goat=leaves, mouse=cheese, hen=grain, whale=tiny shrimps"""

LEGS = """dog=four, cat=four, horse=four, cow=four, spider=eight, ant=six, bee=six, bird=two,
hen=two, snake=no, fish=no, beetle=six, frog=four, octopus=no, duck=two, elephant=four, fly=six"""

COLOURS = """sky=blue, grass=green, snow=white, coal=black, banana=yellow, tomato=red,
carrot=orange, lemon=yellow, blood=red, milk=white, chocolate=brown, sun=yellow, leaf=green,
night=black, strawberry=red, frog=green, swan=white, crow=black, cloud=white, sea=blue,
plum=purple, pumpkin=orange, cherry=red, pea=green, elephant=grey, bear=brown, rose=red,
salt=white, fire=orange, cucumber=green, aubergine=purple, mouse=grey, paper=white"""

OPPOSITES = """hot=cold, big=small, tall=short, long=short, fast=slow, old=young, new=old,
good=bad, happy=sad, light=dark, day=night, black=white, up=down, left=right, in=out, open=closed,
full=empty, hard=soft, heavy=light, high=low, wide=narrow, rich=poor, strong=weak, wet=dry,
clean=dirty, loud=quiet, early=late, first=last, near=far, easy=difficult, begin=end, start=stop,
give=take, buy=sell, push=pull, win=lose, love=hate, remember=forget, ask=answer, always=never,
true=false, right=wrong, sweet=sour, thick=thin, deep=shallow, rough=smooth, brave=afraid,
cheap=expensive, inside=outside, above=below, before=after, safe=dangerous, alive=dead,
arrive=leave, sharp=blunt, awake=asleep, busy=free, same=different, success=failure, summer=winter,
north=south, east=west, laugh=cry, polite=rude, simple=complicated, tight=loose, front=back,
top=bottom, male=female, teacher=pupil, question=answer, morning=evening, friend=enemy"""

SYNONYMS = """big=large, small=little, fast=quick, happy=glad, sad=unhappy, begin=start,
end=finish, smart=clever, angry=cross, quiet=silent, ill=sick, rich=wealthy, easy=simple,
hard=difficult, pretty=beautiful, buy=purchase, help=assist, ask=enquire, near=close,
wrong=incorrect, right=correct, holiday=vacation, job=work, boss=manager, pay=salary, shop=store,
repair=mend, gift=present, speak=talk, choose=pick, allow=permit, need=require, get=receive,
show=display, answer=reply, error=mistake, rule=regulation, car=automobile, street=road,
brave=courageous, strange=odd, build=construct, rest=break, tired=weary, tasty=delicious,
under=below, above=over, garbage=rubbish, coat=jacket, cup=mug, photo=picture, film=movie,
colleague=workmate, task=job, goods=wares, client=customer, journey=trip, hurt=injure,
lunch=midday meal, desk=work table, broken=damaged, hand in=submit, lend=loan, leave=depart"""

PLURALS = """cat=cats, dog=dogs, child=children, man=men, woman=women, mouse=mice, foot=feet,
tooth=teeth, goose=geese, person=people, sheep=sheep, fish=fish, leaf=leaves, knife=knives,
wolf=wolves, baby=babies, city=cities, box=boxes, bus=buses, dish=dishes, tomato=tomatoes,
potato=potatoes, key=keys, day=days, ox=oxen, church=churches, story=stories, half=halves,
life=lives, book=books, table=tables, glass=glasses, watch=watches, fox=foxes, party=parties,
country=countries, hero=heroes, photo=photos, shelf=shelves, cherry=cherries, brush=brushes"""

PAST_TENSES = """go=went, see=saw, eat=ate, drink=drank, run=ran, write=wrote, read=read,
sing=sang, swim=swam, give=gave, take=took, make=made, come=came, know=knew, think=thought,
buy=bought, bring=brought, find=found, sleep=slept, speak=spoke, break=broke, fly=flew,
grow=grew, begin=began, drive=drove, ride=rode, win=won, lose=lost, build=built, send=sent,
teach=taught, catch=caught, say=said, tell=told, walk=walked, play=played, work=worked, ask=asked,
help=helped, open=opened, close=closed, stop=stopped, carry=carried, try=tried, hear=heard"""

CATEGORIES = """apple=fruit, pear=fruit, banana=fruit, cherry=fruit, plum=fruit, carrot=vegetable,
potato=vegetable, onion=vegetable, cabbage=vegetable, spinach=vegetable, dog=animal, horse=animal,
tiger=animal, elephant=animal, sparrow=bird, eagle=bird, robin=bird, owl=bird, salmon=fish,
trout=fish, shark=fish, ant=insect, bee=insect, beetle=insect, rose=flower, tulip=flower,
daisy=flower, oak=tree, pine=tree, birch=tree, hammer=tool, saw=tool, screwdriver=tool,
spanner=tool, piano=musical instrument, violin=musical instrument, flute=musical instrument,
drum=musical instrument, red=colour, blue=colour, green=colour, shirt=piece of clothing,
coat=piece of clothing, hat=piece of clothing, chair=piece of furniture, table=piece of furniture,
bed=piece of furniture, car=vehicle, bus=vehicle, bicycle=vehicle, lorry=vehicle, tea=drink,
coffee=drink, milk=drink, iron=metal, gold=metal, copper=metal, silver=metal, Monday=day,
March=month, football=sport, tennis=sport, chess=game, cheese=food, bread=food, soup=food,
triangle=shape, circle=shape, square=shape, Paris=city, Tokyo=city, France=country, Japan=country,
doctor=profession, baker=profession, Mars=planet, Venus=planet"""

PROFESSIONS = """baker=bakes bread and cakes, doctor=helps people who are ill,
teacher=teaches children at school, farmer=grows food and keeps animals, carpenter=makes things of
wood, plumber=repairs water pipes, pilot=flies aeroplanes, cook=prepares meals, tailor=makes and
mends clothes, gardener=looks after plants, nurse=cares for patients, dentist=looks after teeth,
painter=paints walls and pictures, postman=brings letters and parcels, librarian=looks after books,
firefighter=puts out fires, mechanic=repairs cars and machines, judge=decides in court,
hairdresser=cuts hair, butcher=sells meat, waiter=serves food to guests, potter=makes pots of clay,
journalist=writes news, architect=designs houses, electrician=repairs lights and cables,
cleaner=keeps rooms clean, accountant=keeps the books in order, vet=treats sick animals,
sailor=works on a ship, miller=grinds grain into flour, blacksmith=shapes hot iron"""

TOOLS = """hammer=drive nails into wood, saw=cut wood, knife=cut food, spoon=eat soup,
pen=write, broom=sweep the floor, key=open a lock, umbrella=stay dry in the rain,
needle=sew clothes, spade=dig a hole, clock=tell the time, telephone=talk to people far away,
oven=bake bread, fridge=keep food cold, lamp=light a room, ladder=reach high places,
towel=dry your hands, map=find the way, thermometer=measure the temperature,
ruler=measure a length, brush=paint a wall, comb=tidy your hair,
kettle=boil water, bucket=carry water, calendar=look up the date, compass=find north,
printer=print documents, laptop=work and write messages, badge=open the office door,
drill=make holes, spanner=turn nuts and bolts, helmet=protect your head, soap=wash your hands"""

BODY = """eyes=see, ears=hear, nose=smell, mouth=eat and speak, hands=hold things, legs=walk,
teeth=chew food, lungs=breathe, heart=pump blood, brain=think, tongue=taste, skin=feel,
feet=stand and walk, fingers=touch and hold things, stomach=digest food"""

FOODS = """bread=flour, cheese=milk, butter=cream, wine=grapes, chips=potatoes, jam=fruit and
sugar, omelette=eggs, chocolate=cocoa beans, paper=wood, glass=sand, honey=nectar, yoghurt=milk,
cider=apples, pasta=wheat, tofu=soya beans, raisins=grapes, candles=wax, wool=the coats of sheep,
marmalade=oranges, porridge=oats, leather=animal skin, ketchup=tomatoes, bricks=clay,
popcorn=maize"""

WEATHER = """it rains=take an umbrella, it snows=wear a warm coat and boots,
the sun shines=wear a hat, it is cold=put on a scarf, it is windy=hold on to your hat,
it is hot=drink plenty of water, it is foggy=drive slowly, there is thunder=stay inside,
it is icy=walk carefully, it is dark=switch on a light"""

COUNTS = """minutes in an hour=sixty, seconds in a minute=sixty, hours in a day=twenty-four,
days in a week=seven, months in a year=twelve, days in a year=three hundred and sixty-five,
letters in the alphabet=twenty-six, fingers on a hand=five, weeks in a year=fifty-two,
seasons in a year=four, sides of a triangle=three, sides of a square=four, legs of a spider=eight,
wheels on a bicycle=two, wheels on a car=four, centimetres in a metre=one hundred,
grams in a kilogram=one thousand, metres in a kilometre=one thousand, years in a century=one
hundred, years in a decade=ten, eggs in a dozen=twelve, sides of a hexagon=six,
planets in the solar system=eight, strings on a violin=four, players in a football team=eleven,
pence in a pound=one hundred, sides of a pentagon=five, corners of a cube=eight"""

MONTH_DAYS = """January=31, February=28, March=31, April=30, May=31, June=30, July=31, August=31,
September=30, October=31, November=30, December=31"""

SEASONS = """January=winter, February=winter, March=spring, April=spring, May=spring, June=summer,
July=summer, August=summer, September=autumn, October=autumn, November=autumn, December=winter"""

LANGUAGES = """France=French, Germany=German, Italy=Italian, Spain=Spanish, Portugal=Portuguese,
Greece=Greek, Denmark=Danish, Norway=Norwegian, Sweden=Swedish, Finland=Finnish, Poland=Polish,
Hungary=Hungarian, Russia=Russian, Turkey=Turkish, Japan=Japanese, China=Chinese,
Brazil=Portuguese, Mexico=Spanish, Egypt=Arabic, Iceland=Icelandic, England=English"""

# From small to large: any two of a line can be compared.
SIZE_LINES = (
    "ant, bee, mouse, frog, rabbit, cat, dog, goat, pig, horse, elephant, whale",
    "cherry, plum, apple, melon, pumpkin",
    "cup, bucket, bath, pond, lake, sea",
    "pebble, brick, house, church, hill, mountain",
    "bicycle, car, lorry, train, ship",
    "room, house, street, town, city, country, continent",
)
DAYS = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"
MONTHS = """January, February, March, April, May, June, July, August, September, October,
November, December"""

SPELLING = """apple, house, water, table, garden, window, bread, letter, music, school, river,
cloud, chair, horse, night, paper, green, stone, plant, ship, tiger, lemon, train, clock, bridge"""
